"""The reward worker: receives sample ids, scores the samples in killable processes, reports to store and broker.

Invariant: a sample is in `_holding` until the broker has acknowledged its score. Reading, scoring, storing and
reporting may be repeated without harm. A *unit* is scored, stored and reported together: one sample, or, for a scorer
that compares responses, all samples of a group that the broker sent at once. Store and broker may restart: the worker
retries, within the limit of rhymed.core.service.retry, and joins again. Does not know what an error means for the
step, except that `reward.on_error = "zero"` turns it into a reward here, so that store and broker agree. A scorer
that never works ends the worker (`ScorerHealth`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import RewardError, UnknownSample
from rhymed.core.service.logfile import cause
from rhymed.core.service.retry import retry
from rhymed.core.service.stopwatch import Stopwatch, stats_of
from rhymed.core.steps import window
from rhymed.core.text import counted
from rhymed.inputs.rows import Row
from rhymed_store.client import StoredSample
from rhymed_workers.reward.child import Item, item
from rhymed_workers.reward.outcome import Outcome
from rhymed_workers.reward.pool import Pool
from rhymed_workers.reward.scorers.setting import EARNED, MESSAGES, STATE, TRANSCRIPT, TURN_REWARDS, TURNS
from rhymed_workers.worker import Work, Worker

log = logging.getLogger(__name__)

BATCH = 256  # units in one request to the store

Decoder = Callable[[Sequence[StoredSample]], list[str]]
Outcomes = dict[messages.SampleId, Outcome]


def load_decoder(config: Config) -> Decoder:
    """Decodes responses without special tokens. The trace engine has no tokenizer: its text is the token ids."""
    if config.rollout.engine == "trace":
        return lambda samples: [" ".join(map(str, sample.tokens.tolist())) for sample in samples]
    from tokenizers import Tokenizer

    from rhymed.inputs.models import resolve_model

    file = resolve_model(config) / "tokenizer.json"
    if not file.is_file():
        raise RewardError(f"{file} is missing: model.path must be a folder with a fast tokenizer")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda samples: list(tokenizer.decode_batch([sample.tokens.tolist() for sample in samples]))


class RewardWorker(Worker):
    """`run` raises `RewardError` when a scorer cannot be loaded, or never works."""

    role, accepts = "reward", messages.ToReward

    async def open(self) -> None:
        decode = await asyncio.to_thread(load_decoder, self.config)
        pool = await self.closing.enter_async_context(Pool(self.config, self.layout.folder))
        scoring = Scoring(self, pool, decode)
        self.begin(scoring)
        for work in (scoring.fetch(), scoring.report()):
            self.spawn(work)


class Scoring(Work):
    def __init__(self, worker: Worker, pool: Pool, decode: Decoder) -> None:
        super().__init__(worker)
        self._pool, self._decode = pool, decode
        self._holding: dict[messages.SampleId, float] = {}  # sample -> time at which it was received
        self._received: asyncio.Queue[list[messages.SampleId]] = asyncio.Queue()  # units
        self._outcomes: asyncio.Queue[Outcomes] = asyncio.Queue()  # of a unit
        self._health = ScorerHealth(self.config.rollout.group_size)
        self._seconds = Stopwatch("idle")

    async def take(self, message: messages.ScoreSamples) -> None:
        fresh = [sample for sample in message.samples if sample not in self._holding]
        self._holding |= dict.fromkeys(fresh, time.monotonic())
        for unit in self._units(fresh):
            self._received.put_nowait(unit)
        if fresh:
            count = counted(len(fresh), "sample")
            log.info("takes %s, first %s", count, fresh[0], extra=cause("scoring", fresh))

    def _units(self, ids: Sequence[messages.SampleId]) -> list[list[messages.SampleId]]:
        if not self._pool.whole:
            return [[id] for id in ids]
        groups: dict[tuple[int, str], list[messages.SampleId]] = {}
        for id in sorted(ids):
            groups.setdefault((id.step, id.prompt), []).append(id)
        return list(groups.values())

    def introduce(self) -> dict[str, Any]:
        return {
            "slots": self.config.reward.slots,
            "holding": list(self._holding),
            "whole_groups": bool(self._pool.whole),
        }

    def heartbeat(self) -> messages.Heartbeat:
        now = time.monotonic()
        held = [messages.Holding(id=id, seconds=now - since) for id, since in self._holding.items()]
        phase = "score" if held else "idle"
        stats = {**self._health.stats(), **self._pool.judges.stats(), **stats_of("reward", self._seconds.read())}
        return messages.Heartbeat(worker=self.name, phase=phase, holding=held, stats=stats)

    # A unit: fetch, score, report

    async def fetch(self) -> None:
        while True:
            units = await _batch(self._received)
            works = dict(await self._read([id for unit in units for id in unit]))
            for unit in units:
                if all(id in works for id in unit):
                    self.spawn(self._score({id: works[id] for id in unit}))
                else:
                    self.spawn(self._give_back([id for id in unit if id in works], blamed=False))

    async def _give_back(self, ids: Sequence[messages.SampleId], *, blamed: bool) -> None:
        """The store lacks a sample of their group, which is generated again: then all are scored together. `blamed`:
        one of these may be that sample."""
        if not ids:
            return
        why = "the store lacks a sample of the group"
        back = messages.GiveBack(worker=self.name, samples=list(ids), reason=why, blamed=blamed)
        await self.membership.report(back, "giving samples back")
        for id in ids:
            self._holding.pop(id, None)

    async def _read(self, ids: Sequence[messages.SampleId]) -> list[tuple[messages.SampleId, Item]]:
        """Texts, tokens and rows of these samples. For one that the store does not have, the outcome is an error."""
        prompts = list(dict.fromkeys(id.prompt for id in ids))
        try:
            samples = await retry(lambda: self.store.get_samples(ids), "reading samples")
            rows = await retry(lambda: self.store.get_prompts(prompts), "reading prompts")
        except UnknownSample as error:
            if len(ids) > 1:
                return [read for id in ids for read in await self._read([id])]
            self._outcomes.put_nowait({ids[0]: _unstored(error)})
            return []
        by_prompt = dict(zip(prompts, rows, strict=True))
        return await asyncio.to_thread(self._items, samples, [by_prompt[sample.info.id.prompt] for sample in samples])

    def _items(self, samples: Sequence[StoredSample], rows: Sequence[Row]) -> list[tuple[messages.SampleId, Item]]:
        """Decodes the samples, which takes long when they have many turns. `rows`: of each of them."""
        texts = self._decode([last_turn(sample) for sample in samples])
        if self.config.environment.active:
            rows = [with_session(row, sample, self._decode) for row, sample in zip(rows, samples, strict=True)]
        return [
            (info.id, item(text, row, sample.tokens.tobytes(), window(info.id.step, 0)[0], info.turn_ends))
            for sample, text, row in zip(samples, texts, rows, strict=True)
            for info in [sample.info]
        ]

    async def _score(self, works: Mapping[messages.SampleId, Item]) -> None:
        """Reports of one unit."""
        with self._seconds.during("score"):
            outcomes = dict(zip(works, await self._pool.score_group(list(works.values())), strict=True))
        for id, outcome in outcomes.items():
            if outcome.error is not None:
                log.warning("%s not scored: %s", id, outcome.error, extra=cause("failed", [id], reason=outcome.error))
        self._outcomes.put_nowait(outcomes)

    async def report(self) -> None:
        while True:
            units = await _batch(self._outcomes)
            for id, outcome in (each for unit in units for each in unit.items()):
                self._health.count(id.prompt, outcome)
            if not (stored := await self._put(units)):
                continue
            try:
                await self.membership.report(messages.Scored(worker=self.name, scores=stored), "reporting scores")
            except RewardError as error:  # reward.on_error = "stop": Finish follows
                log.error("%s: the broker ends the run: %s", self.name, error)
            _log_scored(stored)
            for score in stored:
                self._holding.pop(score.id, None)

    def _score_of(self, id: messages.SampleId, outcome: Outcome) -> messages.Score:
        zero = outcome.error is not None and not outcome.unstored and self.config.reward.on_error == "zero"
        return messages.Score(
            id=id,
            reward=0.0 if zero else outcome.reward,
            error=outcome.error,
            timeout=outcome.timeout,
            parts=outcome.parts,
            metrics=outcome.metrics,
            failed=outcome.failed,
            unstored=outcome.unstored,
        )

    async def _put(self, units: Sequence[Outcomes]) -> list[messages.Score]:
        """Store rewards; returns what to report. A sample that the store does not have gets none,
        and others of its unit are given back."""
        outcomes = {id: outcome for unit in units for id, outcome in unit.items()}
        scores = [self._score_of(id, outcome) for id, outcome in outcomes.items()]
        labels = [scorer.label for scorer in self.config.reward.all]
        rewards = [
            messages.Score(
                id=score.id,
                reward=score.reward,
                parts=outcome.kept(labels, score.reward),
                notes=outcome.notes,
                token_rewards=outcome.token_rewards,
            )
            for score in scores
            if score.reward is not None and (outcome := outcomes[score.id])
        ]
        if not rewards:
            return scores
        try:
            await retry(lambda: self.store.put_scores(rewards), "storing rewards")
        except UnknownSample as error:
            if len(units) > 1:
                return [stored for unit in units for stored in await self._put([unit])]
            if len(scores) == 1:
                return [self._score_of(scores[0].id, _unstored(error))]
            there = [id for id, _ in await self._read(list(outcomes))]  # those that are not are reported
            await self._give_back(there, blamed=len(there) == len(scores))
            return []
        return scores


def _log_scored(scores: Sequence[messages.Score]) -> None:
    scored = [score for score in scores if score.reward is not None]
    if scored:
        more = cause("scored", [score.id for score in scored], rewards=[score.reward for score in scored])
        count = counted(len(scored), "sample")
        log.info("%s scored, first %s: %g", count, scored[0].id, scored[0].reward, extra=more)


def _unstored(error: UnknownSample) -> Outcome:
    return Outcome(error=f"not in the store: {error}", unstored=True)


async def _batch(queue: asyncio.Queue[Any]) -> list[Any]:
    """Wait for one element, then take at most `BATCH` elements that are in the queue."""
    batch = [await queue.get()]
    while len(batch) < BATCH and not queue.empty():
        batch.append(queue.get_nowait())
    return batch


# Counts what a reward worker has scored, and detects scorers that never work.

MAX_FAILED_SAMPLES = 16
MAX_FAILED_PROMPTS = 4
"""Scorers that failed for so many samples of so many prompts, without one reward, never work.

A dataset with a few bad rows fails whole groups, so samples alone are no evidence. Where a worker sees fewer prompts,
the failures of `MAX_FAILED_PROMPTS` whole groups count as much.
"""


class ScorerHealth:
    """`group_size`: samples per prompt."""

    def __init__(self, group_size: int) -> None:
        self._scored = self._errors = self._timeouts = 0
        self._seconds = 0.0
        self._group_size = group_size
        self._failed: list[tuple[str, str]] = []  # prompt and error, until the first reward

    def stats(self) -> dict[str, float]:
        return {
            "reward/scored": float(self._scored),
            "reward/errors": float(self._errors),
            "reward/timeouts": float(self._timeouts),
            "timing_s/score": self._seconds / max(1, self._scored + self._errors),
        }

    def count(self, prompt: str, outcome: Outcome) -> None:
        """Raises `RewardError` with the first error once too many samples have failed without one reward."""
        self._scored += outcome.error is None
        self._errors += outcome.error is not None
        self._timeouts += outcome.timeout
        self._seconds += outcome.seconds
        if self._scored or outcome.unstored:
            return
        self._failed.append((prompt, f"{outcome.failed or 'scoring'}: {outcome.error}"))
        count, prompts = len(self._failed), len({each for each, _ in self._failed})
        enough = prompts >= MAX_FAILED_PROMPTS or count >= MAX_FAILED_PROMPTS * self._group_size
        if count >= MAX_FAILED_SAMPLES and enough:
            raise RewardError(
                f"scoring failed for each of the first {count} samples ({prompts} prompts) and never worked;"
                f" the first error: {self._failed[0][1]}"
            )


# What scorers get of a sample in turns: the policy's last turn as its response, and the rest as columns of the row.
#
# The policy did not write an environment's text, so a response that is scored has none of it. A user's function also
# gets the whole conversation, as TRL and verl give it.


def last_turn(sample: StoredSample) -> StoredSample:
    """With the tokens that the policy wrote last alone; unchanged without an environment."""
    turns = sample.info.turns
    if len(turns) < 2:
        return sample
    last = sample.info.last
    if last is None:
        last = max(place for place in range(0, len(turns), 2) if turns[place] or not place)
    start = sum(turns[:last])
    return replace(sample, tokens=sample.tokens[start : start + turns[last]])


def with_session(row: Row, sample: StoredSample, decode: Callable[[Sequence[StoredSample]], list[str]]) -> Row:
    """A sample of several rows has their own tokens one after another, as they were written."""
    info = sample.info
    bounds = itertools.pairwise([0, *(fork.start for fork in info.forks), info.length])
    texts = decode([replace(sample, tokens=sample.tokens[start:end]) for start, end in bounds])
    transcript = [message for answer in info.said for message in json.loads(answer)] or _runs(sample, decode)
    columns = {
        EARNED: info.earned,
        TURN_REWARDS: info.turn_rewards or None,
        TRANSCRIPT: "\n\n".join(texts),
        TURNS: info.turn_count,
        MESSAGES: transcript,
    }
    return row | columns | ({STATE: json.loads(info.state)} if info.state else {})


def _runs(sample: StoredSample, decode: Callable[[Sequence[StoredSample]], list[str]]) -> list[dict[str, Any]]:
    """The messages of a sample whose environment reported none, as a program's: the policy's text and all other
    text."""
    ends = list(itertools.accumulate(sample.info.turns or [sample.info.length]))
    texts = decode(
        [replace(sample, tokens=sample.tokens[start:end]) for start, end in itertools.pairwise([0, *ends])]
    )
    roles = itertools.cycle(("assistant", "user"))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False) if text]


def as_if_answered(row: Row, response: str) -> Row:
    """The row of a sample that would have one turn, whose environment gave 0."""
    transcript = [{"role": "assistant", "content": response}]
    return {**row, EARNED: 0.0, TURN_REWARDS: [0.0], TRANSCRIPT: response, TURNS: 1, MESSAGES: transcript}
