"""`rhymed history stats`: how large a store is, and the lengths and rewards of its epochs and evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rhymed.core.style import plain_table
from rhymed.core.text import counted, number, size_of
from rhymed.records.history.catalog import Catalog
from rhymed_store.browse import Browse
from rhymed_store.columns import is_trained, title

if TYPE_CHECKING:
    from rich.console import RenderableType


def stats(browse: Browse) -> dict[str, Any]:
    """Lengths in response tokens. `epochs`: see rhymed_store.columns; imported ones first, evaluations last."""
    catalog = Catalog(browse.columns())
    return {
        "totals": browse.totals()._asdict(),
        "prompts": len(catalog.ids),  # with samples
        "epochs": [_epoch(catalog, int(epoch)) for epoch in np.unique(catalog.epochs)],
    }


def _epoch(catalog: Catalog, epoch: int) -> dict[str, Any]:
    chosen = catalog.epochs == epoch
    length, rewards = catalog.columns.length[chosen], catalog.columns.reward[chosen]
    known = rewards[~np.isnan(rewards)]
    return {
        "epoch": epoch,
        "name": title(epoch),
        "prompts": len(np.unique(catalog.columns.prompt[chosen])),
        "samples": len(length),
        "length_mean": float(length.mean()),
        "length_max": int(length.max()),
        "reward_mean": float(known.mean()) if len(known) else None,
    }


def render(found: dict[str, Any], name: str) -> RenderableType:
    """Pure: the table for people."""
    from rich.console import Group

    totals, epochs = found["totals"], found["epochs"]
    trained = sum(is_trained(row["epoch"]) for row in epochs)
    passing = totals["passing_bytes"]
    head = (
        f"{name}: {counted(found['prompts'], 'prompt')}, {counted(totals['samples'], 'sample')},"
        f" {counted(totals['tokens'], 'response token')}, {counted(trained, 'epoch')}\n"
        f"{size_of(totals['used_bytes'])} used"
        f"{f', {size_of(passing)} of it until the next checkpoint' if passing else ''}"
    )
    table = plain_table()
    for column in ("", "prompts", "samples", "length", "longest", "reward"):
        table.add_column(column, justify="right" if column else "left")
    for row in epochs:
        counts = (f"{row['prompts']:,}", f"{row['samples']:,}", f"{row['length_mean']:.1f}", f"{row['length_max']:,}")
        table.add_row(row["name"], *counts, number(row["reward_mean"], ".3f"))
    return Group(head, *([table] if epochs else []))
