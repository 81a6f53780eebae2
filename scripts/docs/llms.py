"""A hook of mkdocs: llms.txt, the list of the site's pages for language models (llmstxt.org). mkdocs.yml names it.

Each entry is a page's title in the navigation and the first sentence of its text. It leads to the page as Markdown,
which is put next to the page as HTML.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)(\{[^}]*\})?")


def sentence(markdown: str) -> str:
    """The first sentence below the title, without links. A page that begins otherwise is a ValueError."""
    body = re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL).strip()
    title, _, text = body.partition("\n\n")
    first = " ".join(LINK.sub(r"\1", text.lstrip().split("\n\n")[0]).split())
    if not re.match(r"[A-Za-z`]", first) or text.startswith(("```", "    ")):
        raise ValueError(f"{title}: a page begins with a sentence that says what it is about")
    return re.split(r"(?<=[.?])\s(?=[A-Z`])", first)[0].rstrip(":.") + "."


def pages(nav: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, str]]]:
    """The sections of the navigation: heading, and title -> file of its pages. Pages without a section come first."""
    yield "Start", {title: name for entry in nav for title, name in entry.items() if isinstance(name, str)}
    for entry in nav:
        for heading, inside in entry.items():
            if isinstance(inside, list):
                yield heading, {title: name for each in inside for title, name in each.items()}


def listing(config: Mapping[str, Any]) -> str:
    """llms.txt of a site with this configuration (of mkdocs: site_name, site_description, nav, docs_dir)."""
    folder = Path(config["docs_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for heading, inside in pages(config["nav"]):
        lines += ["", f"## {heading}", ""]
        lines += [f"- [{title}]({name}): {sentence((folder / name).read_text())}" for title, name in inside.items()]
    return "\n".join(lines) + "\n"


def on_post_build(config: Mapping[str, Any], **others: Any) -> None:
    site = Path(config["site_dir"])
    (site / "llms.txt").write_text(listing(config))
    for _, inside in pages(config["nav"]):
        for name in inside.values():
            shutil.copy(Path(config["docs_dir"]) / name, site / name)
