"""HTML from plain data. Invariant: any text, a model's included, is escaped and never becomes markup.

Pure. All values go through `text`, which also makes control characters and bidirectional marks visible.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from rhymed.printable import visible


def text(value: object) -> str:
    """Escaped for use inside an element or a quoted attribute."""
    return html.escape(visible(str(value)), quote=True)


def section(title: str, *parts: str) -> str:
    """Empty if all parts are empty."""
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{text(title)}</h2>\n{body}\n</section>" if body else ""


def folded(title: str, body: str) -> str:
    return f"<details>\n<summary>{text(title)}</summary>\n{body}\n</details>" if body else ""


def paragraph(value: object, kind: str = "") -> str:
    return f'<p class="{kind}">{text(value)}</p>' if kind else f"<p>{text(value)}</p>"


def numbers(values: Iterable[tuple[str, str]]) -> str:
    """(label, value) pairs as tiles."""
    tiles = "\n".join(f"<div><b>{text(value)}</b>{text(label)}</div>" for label, value in values)
    return f'<div class="numbers">\n{tiles}\n</div>' if tiles else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "") -> str:
    body = "\n".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    if not body:
        return ""
    titles = "".join(f"<th>{text(title)}</th>" for title in head)
    start = f'<table class="{kind}">' if kind else "<table>"
    return f'<div class="wide">{start}\n<tr>{titles}</tr>\n{body}\n</table></div>'


def commands(lines: Iterable[str]) -> str:
    body = "\n".join(map(text, lines))
    return f'<pre class="type">{body}</pre>' if body else ""


def figure(source: str, title: str, about: str) -> str:
    return f'<figure><figcaption>{text(title)}</figcaption><img src="{text(source)}" alt="{text(about)}"></figure>'


def page(title: str, style: str, body: str) -> str:
    """A whole document. Its content security policy forbids scripts and any request."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
