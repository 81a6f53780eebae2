"""Whether a database, and a request to it, are about the prompts of its place among a run's stores, and no others.

A folder that was written with another number of stores, or as another one of them, would answer that it does not have
samples which it has, or which its neighbours have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rhymed import messages
from rhymed.errors import RunMismatch
from rhymed.messages.base import Message
from rhymed.run.layout import RunLayout, store_name
from rhymed_store.database.tables import Tables
from rhymed_store.shards.split import shard_of

BY_PROMPT = ("samples", "prompts")


def _of_samples(message: Any) -> Iterable[str]:
    return (sample.prompt for sample in message.samples)


def _none(message: Message) -> Iterable[str]:
    return ()


PROMPTS: dict[type[Message], Callable[[Any], Iterable[str]]] = {
    messages.PutPrompts: lambda message: (row.prompt for row in message.rows),
    messages.GetPrompts: lambda message: message.prompts,
    messages.PutSamples: lambda message: (info.id.prompt for info in message.samples),
    messages.PutPartials: _of_samples,
    messages.GetPartials: _of_samples,
    messages.PutTurns: _of_samples,
    messages.PutAnswer: lambda message: (message.sample.prompt,),
    messages.PutCalls: lambda message: (message.sample.prompt,),
    messages.GetSessions: _of_samples,
    messages.GetSamples: _of_samples,
    messages.PutScores: lambda message: (score.id.prompt for score in message.scores),
    messages.PutTokenStats: _of_samples,
    messages.MarkSamples: _of_samples,
    messages.GetHistory: lambda message: (message.prompt,),
    messages.GetLengths: lambda message: message.prompts,
}
"""Prompts that a request is about."""


def check_place(database: Tables, layout: RunLayout) -> None:
    """Raises `RunMismatch`. Two look-ups per table: a store has a range of prompts."""
    more = layout.folder / store_name(layout.shards) / "data.mdb"
    if more.exists():
        raise RunMismatch(f"{more} is of one store more than store.shards = {layout.shards}{_ways_out(layout)}")
    if layout.shards == 1:
        return
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
        ". Put back what was there, or start a new run, which takes the history of this one over with `rhymed"
        f" history import CONFIG {layout.folder}`"
    )


def check_prompts(message: Message, layout: RunLayout) -> None:
    """Raises `RunMismatch` for a request of a process that counts other stores than this one does."""
    for prompt in PROMPTS.get(type(message), _none)(message):
        if shard_of(prompt, layout.shards) != layout.shard:
            raise RunMismatch(
                f"prompt {prompt} is not of {store_name(layout.shard)}, one of {layout.shards} stores: the process"
                " that asked has another store.shards in its configuration than the run has"
            )
