"""`rhymed history show` without a prompt: a store's prompts, trained ones before held-out and imported ones."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from rhymed.core.printable import visible
from rhymed.core.style import plain_table
from rhymed.core.text import number
from rhymed.inputs.rows import prompt_text
from rhymed.records.history.catalog import KINDS, Catalog, Kind, Sort
from rhymed_store.browse import Browse

if TYPE_CHECKING:
    from rich.console import RenderableType


def listing(
    browse: Browse, ids: Container[str], sort: Sort, limit: int, kind: Kind | None = None
) -> tuple[list[dict[str, Any]], int]:
    """The first of these prompts as rows of `Catalog`, ascending, and how many there are. `kind`: only these."""
    catalog = Catalog(browse.columns())
    ordered = [
        place for each in KINDS if kind in (None, each) for place in catalog.order(sort, down=False, kind=each)
    ]
    found = [place for place in ordered if catalog.ids[place] in ids]
    texts = [prompt_text(browse.row(catalog.ids[place])) for place in found[:limit]]
    return catalog.rows(found[:limit], texts), len(found)


def render_listing(rows: list[dict[str, Any]], there: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    table = plain_table(expand=True)
    for column in ("prompt", "epochs", "samples", "length", "reward"):
        table.add_column(column, justify="left" if column == "prompt" else "right", no_wrap=True)
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        table.add_row(
            row["id"],
            str(row["epochs"]) if row["kind"] == "training" else row["kind"],
            str(row["samples"]),
            f"{row['length']:.1f}",
            number(row["reward"], ".3f"),
            Text(visible(" ".join(row["text"].split()))),
        )
    left = there - len(rows)
    return Group(table, *([f"{left:,} more: --limit {there}; or name one by id or words"] if left else []))
