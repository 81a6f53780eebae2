"""A hook of mkdocs: which pages come first in the documentation's search. mkdocs.yml names it."""

from __future__ import annotations

from typing import Any

BOOST = {
    "install.md": 4.0,
    "config.md": 3.0,
    "quickstart.md": 2.0,
    "own.md": 2.0,
    "troubleshooting.md": 2.0,
    "experiments.md": 0.5,
    "notebook.md": 0.2,
    "protocol.md": 0.3,
    "ledger.md": 0.3,
}
"""Factor of a page's rank, default 1: what users look for, before what developers look up."""


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    if page.file.src_uri in BOOST:
        page.meta["search"] = {"boost": BOOST[page.file.src_uri]}
    return markdown
