"""Whether a database has the prompts of its place among a run's stores, and no others.

A folder that was written with another number of stores, or as another one of them, would answer that it does not have
samples which it has, or which its neighbours have.
"""

from __future__ import annotations

from rhymed.errors import RunMismatch
from rhymed.run.layout import RunLayout
from rhymed_store.database.tables import Tables
from rhymed_store.shards.split import shard_of

BY_PROMPT = ("samples", "prompts")


def check_place(database: Tables, layout: RunLayout) -> None:
    """Raises `RunMismatch`. Two look-ups per table: a store has a range of prompts."""
    beside = layout.folder / "store-1" / "data.mdb"
    if layout.shards == 1 and beside.exists():
        raise RunMismatch(f"{beside} belongs to a run of several stores, and store.shards = 1{_ways_out(layout)}")
    with database.read() as txn:
        for table in BY_PROMPT:
            with txn.cursor(database.tables[table]) as cursor:
                ends = [bytes(cursor.key()[:8]).hex() for move in (cursor.first, cursor.last) if move()]
            if any(shard_of(prompt, layout.shards) != layout.shard for prompt in ends):
                raise RunMismatch(
                    f"{layout.database} has prompts of other stores than number {layout.shard} of {layout.shards}: it"
                    f" was written with another store.shards, or in another folder{_ways_out(layout)}"
                )


def _ways_out(layout: RunLayout) -> str:
    return (
        ". Put back what was there, or start a new run, which takes the history of this one over with `rhymed history"
        f" import {layout.folder}`"
    )
