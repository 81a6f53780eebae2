"""The reward worker: receives sample ids, scores the samples in killable processes, reports to store and broker.

Invariant: a sample is in `_holding` until the broker has acknowledged its score. Reading, scoring, storing and
reporting may be repeated without harm. Store and broker may restart: the worker retries, within the limit of
rhymed.service.retry, and joins again. Does not know what an error means for the step, except that `reward.on_error =
"zero"` turns it into a reward here, so that store and broker agree. A scorer that never works ends the worker
(rhymed_workers.reward.health).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rhymed import messages
from rhymed.config import Config
from rhymed.errors import MalformedMessage, RewardError, UnknownSample
from rhymed.inputs.rows import Row
from rhymed.run.layout import RunLayout
from rhymed.service.activities import stats_of
from rhymed.service.logline import cause
from rhymed.service.retry import retry
from rhymed.service.service import Service
from rhymed.service.stopwatch import Stopwatch
from rhymed.text import counted
from rhymed.wire.sockets import DONE, Client
from rhymed_store.client import StoredSample
from rhymed_store.shards.client import connect
from rhymed_workers.membership import member
from rhymed_workers.reward.health import ScorerHealth
from rhymed_workers.reward.pool import Pool
from rhymed_workers.reward.sessions import last_turn, with_session
from rhymed_workers.scoring.child import Item, item
from rhymed_workers.scoring.verdict import Outcome

log = logging.getLogger(__name__)

BATCH = 256  # samples in one request to the store

Decoder = Callable[[Sequence[StoredSample]], list[str]]


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


class RewardWorker(Service):
    """`name` is unique in the run. `run` raises `RewardError` when a scorer cannot be loaded, or never works."""

    def __init__(self, config: Config, layout: RunLayout, name: str) -> None:
        super().__init__(name)
        self._config = config
        self._layout = layout
        self._holding: dict[messages.SampleId, float] = {}  # sample -> time at which it was received
        self._received: asyncio.Queue[messages.SampleId] = asyncio.Queue()
        self._outcomes: asyncio.Queue[tuple[messages.SampleId, Outcome]] = asyncio.Queue()
        self._health = ScorerHealth(config.rollout.group_size)
        self._seconds = Stopwatch("idle")
        self._closing = contextlib.AsyncExitStack()

    async def open(self) -> None:
        self._decode = await asyncio.to_thread(load_decoder, self._config)
        self._pool = await self._closing.enter_async_context(Pool(self._config, self._layout.folder))
        self._store = connect(self._layout, self.name, self._layout.keys("reward"))
        self._closing.callback(self._store.close)
        keys = self._layout.keys("reward").to("broker")
        link = Client(
            self._layout.broker, self.name, peer="broker", accepts=messages.ToReward, handler=self._handle, keys=keys
        )
        self._closing.callback(link.close)
        self._membership = member(link, self._join, self._heartbeat, self._config, "reward")
        self._closing.push_async_callback(self._membership.leave, self.name)
        for work in (self._membership.run(), self._fetch(), self._report()):
            self.spawn(work)

    async def close(self) -> None:
        await self._closing.aclose()

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        match message:
            case messages.ScoreSamples():
                fresh = [sample for sample in message.samples if sample not in self._holding]
                for sample in fresh:
                    self._holding[sample] = time.monotonic()
                    self._received.put_nowait(sample)
                if fresh:
                    count = counted(len(fresh), "sample")
                    log.info("takes %s, first %s", count, fresh[0], extra=cause("scoring", fresh))
            case messages.Finish():
                log.info("%s: the run is over: %s", self.name, message.reason)
                self._membership.dismissed()
                self.stop()
            case _:
                raise MalformedMessage(f"a reward worker does not take {type(message).__name__}")
        return DONE

    # Membership of the run

    def _join(self) -> messages.Join:
        return messages.Join(
            role="reward",
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self._config.reward.slots,
            holding=list(self._holding),
        )

    def _heartbeat(self) -> messages.Heartbeat:
        now = time.monotonic()
        held = [messages.Holding(id=id, seconds=now - since) for id, since in self._holding.items()]
        phase = "score" if held else "idle"
        stats = {**self._health.stats(), **self._pool.judges.stats(), **stats_of("reward", self._seconds.read())}
        return messages.Heartbeat(worker=self.name, phase=phase, holding=held, stats=stats)

    # A sample: fetch, score, report

    async def _fetch(self) -> None:
        while True:
            ids = await _batch(self._received)
            for id, work in await self._read(ids):
                self.spawn(self._score(id, work))

    async def _read(self, ids: Sequence[messages.SampleId]) -> list[tuple[messages.SampleId, Item]]:
        """Texts, tokens and rows of these samples. For one that the store does not have, the outcome is an error."""
        prompts = list(dict.fromkeys(id.prompt for id in ids))
        try:
            samples = await retry(lambda: self._store.get_samples(ids), "reading samples")
            rows = await retry(lambda: self._store.get_prompts(prompts), "reading prompts")
        except UnknownSample as error:
            if len(ids) > 1:
                return [read for id in ids for read in await self._read([id])]
            self._outcomes.put_nowait((ids[0], Outcome(error=f"not in the store: {error}", unstored=True)))
            return []
        by_prompt = dict(zip(prompts, rows, strict=True))
        return await asyncio.to_thread(self._items, samples, [by_prompt[sample.info.id.prompt] for sample in samples])

    def _items(self, samples: Sequence[StoredSample], rows: Sequence[Row]) -> list[tuple[messages.SampleId, Item]]:
        """Decodes the samples, which takes long when they have many turns. `rows`: of each of them."""
        texts = self._decode([last_turn(sample) for sample in samples])
        if self._config.environment.active:
            rows = [with_session(row, sample, self._decode) for row, sample in zip(rows, samples, strict=True)]
        return [
            (sample.info.id, item(text, row, sample.tokens.tobytes()))
            for sample, text, row in zip(samples, texts, rows, strict=True)
        ]

    async def _score(self, id: messages.SampleId, work: Item) -> None:
        with self._seconds.during("score"):
            outcome = await self._pool.score(work)
        if outcome.error is not None:
            log.warning("%s not scored: %s", id, outcome.error, extra=cause("failed", [id], reason=outcome.error))
        self._health.check(id.prompt, outcome)
        self._outcomes.put_nowait((id, outcome))

    async def _report(self) -> None:
        while True:
            outcomes = dict(await _batch(self._outcomes))
            for outcome in outcomes.values():
                self._health.count(outcome)
            stored = await self._put([self._score_of(id, outcome) for id, outcome in outcomes.items()], outcomes)
            try:
                await self._membership.report(messages.Scored(worker=self.name, scores=stored), "reporting scores")
            except RewardError as error:  # reward.on_error = "stop": Finish follows
                log.error("%s: the broker ends the run: %s", self.name, error)
            _log_scored(stored)
            for score in stored:
                self._holding.pop(score.id, None)

    def _score_of(self, id: messages.SampleId, outcome: Outcome) -> messages.Score:
        zero = outcome.error is not None and not outcome.unstored and self._config.reward.on_error == "zero"
        return messages.Score(
            id=id,
            reward=0.0 if zero else outcome.reward,
            error=outcome.error,
            timeout=outcome.timeout,
            parts=outcome.parts,
            failed=outcome.failed,
            unstored=outcome.unstored,
        )

    async def _put(
        self, scores: list[messages.Score], outcomes: Mapping[messages.SampleId, Outcome]
    ) -> list[messages.Score]:
        """Store rewards and loss weights; returns what to report. A sample that the store does not have gets none."""
        rewards = [
            messages.Score(id=score.id, reward=score.reward, weight=outcome.weight, parts=outcome.shown())
            for score in scores
            if score.reward is not None and (outcome := outcomes[score.id])
        ]
        if not rewards:
            return scores
        weights = {score.id: weights for score in rewards if (weights := outcomes[score.id].token_weights)}
        try:
            await retry(lambda: self._store.put_scores(rewards, weights), "storing rewards")
        except UnknownSample as error:
            if len(scores) > 1:
                return [stored for score in scores for stored in await self._put([score], outcomes)]
            return [messages.Score(id=scores[0].id, error=f"not in the store: {error}", unstored=True)]
        return scores


def _log_scored(scores: Sequence[messages.Score]) -> None:
    scored = [score for score in scores if score.reward is not None]
    if scored:
        more = cause("scored", [score.id for score in scored], rewards=[score.reward for score in scored])
        count = counted(len(scored), "sample")
        log.info("%s scored, first %s: %g", count, scored[0].id, scored[0].reward, extra=more)


async def _batch(queue: asyncio.Queue[Any]) -> list[Any]:
    """Wait for one item, then take at most `BATCH` that are there."""
    batch = [await queue.get()]
    while len(batch) < BATCH and not queue.empty():
        batch.append(queue.get_nowait())
    return batch
