"""Samples in turns, as a rollout worker sees them: it writes a turn after what the store has, and stores it.

The store has the prompt, which the sample's environment wrote, and everything since. Whether and how the sample goes
on is decided by its environment. Knows no tools.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rhymed import messages
from rhymed.config import Config
from rhymed.histospec.drafts.yields import accepted
from rhymed.service.logline import cause
from rhymed.service.retry import retry
from rhymed.text import counted
from rhymed_store.client import StoreClient
from rhymed_store.sessions import NewTurn, get_session, put_turns
from rhymed_workers.engines.base import DraftReport
from rhymed_workers.rollout.generation import ActiveSample

log = logging.getLogger(__name__)

READY_SHARE = 8  # one sample in turns waits here for so many that the engine writes


def slots_of(config: Config) -> int:
    """Samples that a worker has at once. Where they have turns, a few of them wait for the engine: when a turn ends,
    the next one is here, and has been read."""
    most = config.rollout.max_concurrency
    return most + (most // READY_SHARE if config.environment.active else 0)


class Sessions:
    """Reads what a sample begins its next turn with. `context`: the tokens that a row of a program may have besides
    its response; None: samples have no program."""

    def __init__(self, store: StoreClient, context: int | None = None) -> None:
        self._store, self._context = store, context

    async def begin(self, sample: ActiveSample) -> bool:
        """False: its environment has to answer first, as when this turn was written before."""
        stored = await retry(lambda: get_session(self._store, sample.id), "reading a sample in turns")
        if stored.session.acts or stored.session.done:
            return False
        number = sample.turn = len(stored.turns)
        tokens, first = stored.before(number).tolist(), stored.prompt.tolist()
        size = len(first) if tokens[: len(first)] == first else len(tokens)
        sample.prompt, sample.prefix = tokens[:size], tokens[size:]
        if self._context is not None:
            sample.branches, sample.repeats = True, stored.repeats(number)
            sample.spare, sample.most = self._context - size, stored.session.answers[number].most
        return True

    def close(self) -> None:
        """Nothing is open."""


async def store_turns(
    name: str, store: StoreClient, samples: Sequence[ActiveSample], reports: Sequence[DraftReport]
) -> messages.Turned:
    """Returns when the turns are durable: what to report. `name`: the worker's."""
    turns = [_new_turn(sample, report) for sample, report in zip(samples, reports, strict=True)]
    await retry(lambda: put_turns(store, turns), "storing turns")
    _log_stored(turns)
    infos = [_info(sample, report) for sample, report in zip(samples, reports, strict=True)]
    return messages.Turned(worker=name, samples=infos)


def _new_turn(sample: ActiveSample, report: DraftReport) -> NewTurn:
    output = sample.output
    assert output is not None, "only finished turns are stored"
    length = len(output.tokens)
    turn = messages.Turn(length=length, finish_reason=output.finish_reason, versions=output.versions)
    drafted = None if report.yields is None else accepted(report.yields, length)
    return NewTurn(sample.id, sample.turn, turn, output.tokens, output.logprobs, drafted)


def _info(sample: ActiveSample, report: DraftReport) -> messages.SampleInfo:
    """Of the turn alone."""
    output = sample.output
    assert output is not None, "only finished turns are reported"
    return messages.SampleInfo(
        id=sample.id,
        prompt_length=len(sample.prompt or ()) + len(sample.prefix or ()),
        length=len(output.tokens),
        finish_reason=output.finish_reason,
        versions=output.versions,
        drafting=report.drafting,
        ahead=sample.ahead,
    )


def _log_stored(turns: Sequence[NewTurn]) -> None:
    numbers, tokens = [turn.number for turn in turns], [turn.turn.length for turn in turns]
    accepted = [0 if turn.drafted is None else int(turn.drafted.sum()) for turn in turns]
    more = cause("turned", [turn.sample for turn in turns], turns=numbers, tokens=tokens, accepted=accepted)
    log.info("generated and stored %s, %s", counted(len(turns), "turn"), counted(sum(tokens), "token"), extra=more)
