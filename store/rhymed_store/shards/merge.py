"""The answers of several stores as one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from rhymed.messages import Journal, JournalEntry, StoreStats
from rhymed_store.position import Position

Item = TypeVar("Item")
Key = TypeVar("Key")


def restored(answers: Iterable[tuple[Sequence[int], Sequence[Item]]]) -> list[Item]:
    """Items in the order in which they were requested. `answers`: their positions in it, and as many items."""
    placed = [pair for places, items in answers for pair in zip(places, items, strict=True)]
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def in_order(keys: Iterable[Key], answers: Iterable[Mapping[Key, Item]]) -> dict[Key, Item]:
    """One mapping of all, in the order of the keys; keys without a value are left out."""
    found = {key: item for answer in answers for key, item in answer.items()}
    return {key: found[key] for key in keys if key in found}


def journals(parts: Sequence[Journal]) -> Journal:
    """Lines in a store's order: of samples in progress, then of finished ones.

    `forgotten` is the largest: a store that deleted log-probs cannot train these steps again. The stores differ only
    if the broker died between them; then a checkpoint covers these steps, and a store that still has their lines does
    no harm. What steps drew is in the first store.
    """
    entries = sorted((entry for part in parts for entry in part.entries), key=_rank)
    return Journal(entries=entries, drawn=parts[0].drawn, forgotten=max(part.forgotten for part in parts))


def _rank(entry: JournalEntry) -> tuple[bool, int, str, int]:
    return entry.state not in ("begun", "turned"), entry.id.step, entry.id.prompt, entry.id.index


def stats(parts: Sequence[StoreStats]) -> StoreStats:
    commits = sum(part.commits for part in parts)
    return StoreStats(
        samples=sum(part.samples for part in parts),
        tokens=sum(part.tokens for part in parts),
        prompts=sum(part.prompts for part in parts),
        used_bytes=sum(part.used_bytes for part in parts),
        map_bytes=sum(part.map_bytes for part in parts),
        commits=commits,
        commit_ms=sum(part.commits * part.commit_ms for part in parts) / max(1, commits),
        full=next((part.full for part in parts if part.full), ""),
    )


def positions(parts: Sequence[Position | None]) -> Position | None:
    """How far all stores together are. None: one of them has no file, or nothing in it."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    return Position(
        claimed=all(part.claimed for part in found),
        id=found[0].id,
        forgotten=max(part.forgotten for part in found),
        end=max(part.end for part in found),
        settled=min(part.settled for part in found),
    )


def outdated(parts: Sequence[Position]) -> int | None:
    """The first store that has not all of the steps below which another one has deleted log-probs. All of them are
    told that a checkpoint covers these steps, when they have all samples; who missed it has the samples."""
    forgotten = max(part.forgotten for part in parts)
    return next((number for number, part in enumerate(parts) if part.settled < forgotten), None)
