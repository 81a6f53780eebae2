"""Stores finished samples and reports them to the broker; hands unfinished ones back.

Storing and reporting twice is harmless, so both are repeated until they are acknowledged. Invariant: a sample is
removed from `active` only when the broker has acknowledged it as generated or given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rhymed.core import messages
from rhymed.core.errors import UnknownSample
from rhymed.core.service.logfile import cause
from rhymed.core.service.retry import retry
from rhymed.core.text import counted
from rhymed.histospec.drafts.yields import accepted
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.sessions import NewTurn, put_turns
from rhymed_workers.engines.base import DraftReport, Engine, Output
from rhymed_workers.rollout.generation import ActiveSample
from rhymed_workers.worker import Membership

log = logging.getLogger(__name__)

BATCH = 256  # samples in one message


class Reporter:
    """`active`: the worker's samples by id; shared with the worker, which adds to it."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        store: StoreClient,
        membership: Membership,
        active: dict[messages.SampleId, ActiveSample],
        *,
        turns: bool = False,
    ) -> None:
        """`turns`: what is finished is a turn of a sample."""
        self._name, self._engine, self._store = name, engine, store
        self._membership, self._active, self._turns = membership, active, turns
        self._finished: asyncio.Queue[ActiveSample] = asyncio.Queue()
        self._removed = asyncio.Event()
        self.stored = 0  # samples

    def add(self, sample: ActiveSample, output: Output) -> None:
        """`sample` is finished: `run` stores and reports it."""
        sample.output = output
        self._finished.put_nowait(sample)

    async def run(self) -> None:
        while True:
            samples = [await self._finished.get()]
            while len(samples) < BATCH and not self._finished.empty():
                samples.append(self._finished.get_nowait())
            await self._store_and_report(samples)
            self._remove(samples)

    async def wait_until_reported(self) -> None:
        """Until no finished sample is left."""
        while any(sample.output is not None for sample in self._active.values()):
            self._removed.clear()
            await self._removed.wait()

    async def hand_over(self, sample: ActiveSample, output: Output) -> None:
        """Give the sample back for another worker, which continues with its tokens."""
        if len(output.tokens):
            await retry(lambda: self._store.put_partials({sample.id: (0, output.tokens)}), "storing a partial sample")
        back = messages.GiveBack(worker=self._name, samples=[sample.id], reason="moved", moved=True)
        await self._membership.report(back, "handing a sample over")
        more = cause("moved", [sample.id], tokens=len(output.tokens))
        log.info("handed over sample %s with %d tokens", sample.id, len(output.tokens), extra=more)
        self._remove([sample])

    async def give_back(self, sample: ActiveSample, reason: str, *, retry: bool = False) -> None:
        """`retry`: another attempt may succeed."""
        if self._active.get(sample.id) is not sample:
            return
        more = cause("returned", [sample.id], reason=reason)
        log.warning("%s: sample %s given back: %s", self._name, sample.id, reason, extra=more)
        back = messages.GiveBack(worker=self._name, samples=[sample.id], reason=reason, retry=retry)
        await self._membership.report(back, "giving a sample back")
        self._remove([sample])

    async def report_turned(self, sample: ActiveSample) -> None:
        """Its turn was written before: its environment has to answer."""
        sample.stored = True
        info = messages.SampleInfo(id=sample.id, prompt_length=0, length=0, finish_reason="stop", versions=[])
        await self._membership.report(messages.Turned(worker=self._name, samples=[info]), "reporting a turn")
        self._remove([sample])

    async def _store_and_report(self, samples: Sequence[ActiveSample]) -> None:
        """If the store has an earlier record of a sample, by another worker or process, that record is reported."""
        drafts = await self._engine.drafting([sample.id for sample in samples])
        if self._turns:
            await self._store_and_report_turns(samples, drafts)
            return
        records = [new_record(sample, report) for sample, report in zip(samples, drafts, strict=True)]
        earlier = await retry(lambda: self._store.put_samples(records), "storing samples")
        self.stored += len(records)
        _log_stored(records, [info.id for info in earlier])
        infos = {record.info.id: record.info for record in records} | {info.id: info for info in earlier}
        generated = messages.Generated(worker=self._name, samples=list(infos.values()))
        await self._membership.report(generated, "reporting samples")

    async def _store_and_report_turns(self, samples: Sequence[ActiveSample], drafts: Sequence[DraftReport]) -> None:
        """A sample whose session the store lost, with an older copy of itself, ends alone."""
        try:
            turns = [new_turn(sample, report) for sample, report in zip(samples, drafts, strict=True)]
            await retry(lambda: put_turns(self._store, turns), "storing turns")
        except UnknownSample as error:
            if len(samples) == 1:
                await self.give_back(samples[0], str(error))
                return
            for sample, report in zip(samples, drafts, strict=True):
                await self._store_and_report_turns([sample], [report])
            return
        _log_turned(turns)
        self.stored += len(samples)
        for sample in samples:
            sample.stored = True
        infos = [info_of(sample, report) for sample, report in zip(samples, drafts, strict=True)]
        await self._membership.report(messages.Turned(worker=self._name, samples=infos), "reporting turns")

    def _remove(self, samples: Sequence[ActiveSample]) -> None:
        for sample in samples:
            if self._active.get(sample.id) is sample:
                del self._active[sample.id]
        self._removed.set()


def new_record(sample: ActiveSample, drafts: DraftReport) -> NewSample:
    output, prompt = sample.output, sample.prompt
    assert output is not None, "only finished samples are stored"
    assert prompt is not None, "a finished sample had a prompt"
    drafted = _drafted(drafts, len(output.tokens))
    return NewSample(info_of(sample, drafts), prompt, output.tokens, output.logprobs, drafted, output.floors)


def new_turn(sample: ActiveSample, drafts: DraftReport) -> NewTurn:
    output = sample.output
    assert output is not None, "only finished turns are stored"
    length = len(output.tokens)
    turn = messages.Turn(length=length, finish_reason=output.finish_reason, versions=output.versions)
    drafted = _drafted(drafts, length)
    return NewTurn(sample.id, sample.turn, turn, output.tokens, output.logprobs, drafted, output.floors)


def info_of(sample: ActiveSample, drafts: DraftReport) -> messages.SampleInfo:
    """Of the sample; if it has turns, of this turn alone."""
    output = sample.output
    assert output is not None, "it is finished"
    return messages.SampleInfo(
        id=sample.id,
        prompt_length=len(sample.prompt or ()) + len(sample.prefix or ()),
        length=len(output.tokens),
        finish_reason=output.finish_reason,
        versions=output.versions,
        drafting=drafts.drafting,
        ahead=sample.ahead,
    )


def _drafted(drafts: DraftReport, length: int) -> NDArray[np.bool_] | None:
    return None if drafts.yields is None else accepted(drafts.yields, length)


def _log_turned(turns: Sequence[NewTurn]) -> None:
    numbers, tokens = [turn.number for turn in turns], [turn.turn.length for turn in turns]
    accepted = [0 if turn.drafted is None else int(turn.drafted.sum()) for turn in turns]
    more = cause("turned", [turn.sample for turn in turns], turns=numbers, tokens=tokens, accepted=accepted)
    log.info("generated and stored %s, %s", counted(len(turns), "turn"), counted(sum(tokens), "token"), extra=more)


def _log_stored(records: Sequence[NewSample], earlier: Sequence[messages.SampleId]) -> None:
    infos = [record.info for record in records]
    tokens = [info.length for info in infos]
    drafted = [0 if record.drafted is None else int(record.drafted.sum()) for record in records]
    more = cause("stored", [info.id for info in infos], tokens=tokens, accepted=drafted)
    log.info(
        "generated and stored %s, %s, %d of them accepted drafts, first %s",
        counted(len(infos), "sample"), counted(sum(tokens), "token"), sum(drafted), infos[0].id, extra=more,
    )  # fmt: skip
    if earlier:
        log.info("the store had a record of %s", counted(len(earlier), "sample"), extra=cause("kept", earlier))
