"""Keeps the store abreast of what is being written, so that a worker's death costs nobody more than a few tokens.

Every running sample's new tokens go to the store when there are `MOST` of them, or after `rollout.save_every_s`;
whoever goes on with the sample begins with them (`PutPartials`). What cannot be saved now is saved the next time,
with what has come since: nothing here ever holds up an engine, or ends a worker. What the store lacks the beginning
of, because another worker wrote there meanwhile, is saved from its first token on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rhymed.errors import RhymedError
from rhymed.histospec.drafts.yields import accepted
from rhymed.messages import SampleId, SampleInfo
from rhymed_store.client import NewSample, StoreClient
from rhymed_workers.engines.base import Told
from rhymed_workers.rollout.generation import Hand, Writing

log = logging.getLogger(__name__)

MOST = 24  # tokens of one sample that wait; about as many again come until the next look, at 250 a second
LOOK_S = 0.1
AGAIN_S = 5.0  # after a failure: a full or ailing store is not to get all unsaved tokens ten times a second
PUT_S = 10.0

Parts = Mapping[SampleId, tuple[int, Any]]
"""Sample -> position of the first token, tokens."""


class Saving:
    """`hands`: what is in hand at the moment of the call."""

    def __init__(
        self, every_s: float, store: StoreClient, writing: Writing, hands: Callable[[], Iterable[Hand]]
    ) -> None:
        self._every_s = every_s
        self._store, self._writing, self._hands = store, writing, hands
        self._failed = False  # the last time

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(AGAIN_S if self._failed else min(LOOK_S, self._every_s / 2))
            await self.save(everything=False)

    async def save(self, *, everything: bool = True) -> None:
        """What is new, or what is due."""
        now = time.monotonic()
        fresh = self._writing.unsaved(self._hands())
        due = {hand: part for hand, part in fresh.items() if everything or self._is_due(hand, len(part), now)}
        if not due:
            return
        parts = {hand.id: (hand.saved, part) for hand, part in due.items()}
        missing = await self._put(parts)
        if missing is None:
            return
        for hand, part in due.items():
            start = parts[hand.id][0]
            if hand.id in missing:
                hand.saved = 0
            elif hand.saved == start:  # else it has begun anew meanwhile
                hand.saved, hand.saved_at = start + len(part), now

    def _is_due(self, hand: Hand, count: int, now: float) -> bool:
        return count >= MOST or now - max(hand.saved_at, hand.since) >= self._every_s

    async def _put(self, parts: Parts) -> Collection[SampleId] | None:
        """Of which the store lacks what was before; None: nothing is saved."""
        try:
            missing = await self._store.put_partials(parts, deadline_s=PUT_S)
        except RhymedError as error:
            if not self._failed:
                log.warning("what %d samples have so far is not saved: %s", len(parts), error)
            self._failed = True
            return None
        if self._failed:
            log.info("what samples have so far is saved again")
        self._failed = False
        return missing


def new_sample(hand: Hand, told: Told) -> NewSample:
    """The record of what is written to its end."""
    output, prompt = hand.output, hand.prompt
    assert output is not None, "only finished samples are stored"
    assert prompt is not None, "what is finished had a prompt"
    info = SampleInfo(
        id=hand.id,
        prompt_length=len(prompt),
        length=len(output.tokens),
        finish_reason=output.finish_reason,
        versions=output.versions,
        drafting=told.drafting,
        ahead=hand.ahead,
    )
    drafted = None if told.yields is None else accepted(told.yields, len(output.tokens))
    return NewSample(info, prompt, output.tokens, output.logprobs, drafted)
