"""How many generated tokens are lost when a worker is killed.

A running sample had the tokens that its worker reported last, plus, with the trace engine, what it can have generated
since by that engine's clock: an upper bound. What the store has a moment later is kept: the whole sample, its
beginning, or nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from rhymed.core.config import Config
from rhymed.core.errors import StoreError
from rhymed.core.messages import GetPartials, SampleId
from rhymed_store.browse import Browse
from rhymed_workers.engines.trace import TraceBook
from tests.stress.run import LiveRun, Watch

KNOWN_S = 1.0


class Loss(NamedTuple):
    sample: SampleId
    had: int  # tokens
    kept: int  # of these, in the store

    @property
    def tokens(self) -> int:
        return max(0, self.had - self.kept)


def held(watch: Watch, config: Config, pids: Collection[int]) -> list[tuple[SampleId, int]]:
    """The samples that these processes are generating, with their tokens.

    Leaves out a process that has not reported for `KNOWN_S`.
    """
    if watch.queues is None:
        return []
    clocked = config.rollout.engine == "trace"
    age_s, book, found = time.monotonic() - watch.asked_at, TraceBook(config.trace, config.rollout), []
    for row in watch.queues.workers:
        silent_s = age_s + row.silent_s
        if row.role == "rollout" and row.pid in pids and silent_s < KNOWN_S:
            since = int(silent_s / (config.trace.step_s + config.trace.token_s * len(row.holding))) + 1
            for one in row.holding:
                if one.tokens and not one.parked:
                    whole = len(book.response(one.id)[0]) if clocked else one.tokens
                    found.append((one.id, min(whole, one.tokens + since)))
    return found


def lost(run: LiveRun, before: Sequence[tuple[SampleId, int]]) -> list[Loss]:
    """What the store has of these; empty if it cannot be read at the moment."""
    with contextlib.suppress(StoreError), run.browse() as browse:
        partials, _ = browse.partials(GetPartials(samples=[id for id, _ in before]))
        begun = dict(zip(partials.samples, partials.lengths, strict=True))
        return [Loss(id, had, had if _stored(browse, id) else begun.get(id, 0)) for id, had in before]
    return []


def _stored(browse: Browse, id: SampleId) -> bool:
    return any(found.sample == id for found in browse.headers(id.prompt))
