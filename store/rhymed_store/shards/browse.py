"""All stores of a run as one, for people: `StoreReader` opens them read-only, and its `browse` has every query.

Invariant: every public query of `Browse` is answered from all stores, in the order of a single one. Each store is
read in its own snapshot. Queries of `Reads` for processes go through their store, except `samples`, of one prompt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rhymed.messages import Drawn, GetSamples, SampleId, Samples, Session
from rhymed_store.codec.tokenstats import TokenStats
from rhymed_store.database.reads import SampleRecord
from rhymed_store.database.tables import Reader
from rhymed_store.inspect.browse import Browse, Response, Totals
from rhymed_store.inspect.columns import SampleColumns
from rhymed_store.shards import merge
from rhymed_store.shards.folders import folders_of
from rhymed_store.shards.split import positions_by_shard, shard_of


class StoreReader:
    """A context manager. Raises `StoreError` where one of the stores cannot be read."""

    def __init__(self, store: Path) -> None:
        with contextlib.ExitStack() as opened:
            self._readers = [opened.enter_context(Reader(folder)) for folder in folders_of(store)]
            self._opened = opened.pop_all()
        parts = [Browse(reader) for reader in self._readers]
        self.browse: Browse = parts[0] if len(parts) == 1 else ShardedBrowse(parts)

    @property
    def changes(self) -> int:
        """Number of transactions so far. Equal numbers mean equal content."""
        return sum(reader.changes for reader in self._readers)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ShardedBrowse(Browse):
    def __init__(self, parts: Sequence[Browse]) -> None:
        self._stores = tuple(parts)

    def store_of(self, prompt: str) -> int:
        return shard_of(prompt, len(self._stores))

    def totals(self) -> Totals:
        return Totals(*map(sum, zip(*(part.totals() for part in self._stores), strict=True)))

    def ids(self) -> list[str]:
        return [prompt for part in self._stores for prompt in part.ids()]

    def prompts_of_step(self, step: int, most: int) -> list[str]:
        found: list[str] = []
        for part in self._stores:
            found += part.prompts_of_step(step, most - len(found))
        return found

    def columns(self) -> SampleColumns:
        parts = [part.columns() for part in self._stores]

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(part, name) for part in parts])

        return SampleColumns(
            prompt=joined("prompt"),
            step=joined("step"),
            length=joined("length"),
            reward=joined("reward"),
            dropped=joined("dropped"),
            damaged=sum(part.damaged for part in parts),
        )

    def samples(self, message: GetSamples) -> tuple[Samples, list[Any]]:
        """Of one prompt."""
        return self._of(message.samples[0].prompt).samples(message)

    def row(self, prompt: str) -> str | None:
        return self._of(prompt).row(prompt)

    def headers(self, prompt: str) -> list[SampleRecord]:
        return self._of(prompt).headers(prompt)

    def responses(self, prompt: str) -> list[Response]:
        return self._of(prompt).responses(prompt)

    def drops(self, prompt: str) -> dict[SampleId, str]:
        return self._of(prompt).drops(prompt)

    def token_stats(self, samples: Sequence[SampleId]) -> list[TokenStats | None]:
        places = positions_by_shard([sample.prompt for sample in samples], len(self._stores))
        return merge.restored(
            (own, self._stores[number].token_stats([samples[place] for place in own]))
            for number, own in places.items()
        )

    def drafted(self, found: Sequence[SampleRecord]) -> list[NDArray[np.bool_] | None]:
        places = positions_by_shard([row.sample.prompt for row in found], len(self._stores))
        return merge.restored(
            (own, self._stores[number].drafted([found[place] for place in own])) for number, own in places.items()
        )

    def session(self, sample: SampleId) -> Session:
        return self._of(sample.prompt).session(sample)

    def in_progress(self) -> list[SampleId]:
        return [sample for part in self._stores for sample in part.in_progress()]

    def begins(self) -> int:
        return max(part.begins() for part in self._stores)

    def drawn_steps(self) -> list[Drawn]:
        return self._stores[0].drawn_steps()

    def _of(self, prompt: str) -> Browse:
        return self._stores[self.store_of(prompt)]
