"""`rhymed history import`: an earlier run's responses as history of another run.

A prompt's newest epoch becomes step -1, the one before -2, and so on, so imported samples are older than all of the
run's own. Imported samples are never trained. They are written through the run's store: the living one, or one
started here for the import. An import can be repeated without harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from rhymed.core.config import Config, Net
from rhymed.core.errors import DataError, DeadlineExceeded
from rhymed.core.messages import SampleInfo, Score
from rhymed.core.run.layout import layout_of
from rhymed.core.steps import is_evaluation
from rhymed.inputs.rows import Row
from rhymed.inputs.tokenizer import Vocabulary, read_vocabulary
from rhymed_store.browse import Browse, Response
from rhymed_store.client import NewSample, StoreClient, connect
from rhymed_store.database.transactions import is_open
from rhymed_store.service import StoreService

MESSAGE_SAMPLES = 256
AT_ONCE = 32  # prompts written together: they share the store's commits
MOST_HISTORY = 1 << 16  # responses of one prompt
LIVING_S = 5.0

ELSEWHERE = "of prompts that are not in the new run's data (--all imports them too)"
HELD_OUT = "evaluations of held-out prompts"
DROPPED = "dropped in that run"
UNFINISHED = "empty or aborted"
THERE = "already imported"
TAKEN = "another import has their steps: use a new run.name"


@dataclass
class ImportReport:
    samples: int = 0
    tokens: int = 0
    prompts: int = 0
    epochs: int = 0  # most of a prompt
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> samples


def vocabulary_of(config: Config) -> Vocabulary:
    if config.rollout.engine == "trace":
        return Vocabulary(size=config.trace.vocabulary)
    from rhymed.inputs.models import resolve_model

    return read_vocabulary(resolve_model(config) / "tokenizer.json")


def check_ids(source: Browse, size: int, owner: str) -> None:
    """Raises `DataError` if a token id is not in the owner's vocabulary: the source has another tokenizer."""
    for response in _responses(source):
        largest = int(max(np.max(tokens, initial=0) for tokens in (response.prompt_tokens, response.tokens)))
        if largest >= size:
            raise DataError(
                f"{owner} has {size} tokens, but sample {response.info.id} has the token id {largest}: it was made"
                " with another tokenizer; nothing was imported"
            )


def _responses(source: Browse) -> Iterator[Response]:
    return (response for prompt in source.ids() for response in source.responses(prompt))


async def import_history(source: Browse, config: Config, wanted: Container[str] | None) -> ImportReport:
    """`wanted`: ids of the prompts to import; None: all."""
    report = ImportReport()
    async with _store(config) as client:
        groups = _groups(source, wanted, report)
        while batch := await asyncio.to_thread(lambda: list(islice(groups, AT_ONCE))):
            await client.put_prompts([group.row for group in batch if group.row is not None])
            await asyncio.gather(*(_put(client, group.samples, report) for group in batch))
    return report


class PromptGroup(NamedTuple):
    row: Row | None
    samples: list[NewSample]


def _groups(source: Browse, wanted: Container[str] | None, report: ImportReport) -> Iterator[PromptGroup]:
    for prompt in source.ids():
        responses = source.responses(prompt)
        if wanted is not None and prompt not in wanted:
            report.left_out[ELSEWHERE] += len(responses)
            continue
        kept = [one for one in responses if not (reason := _unfit(one)) or report.left_out.update([reason])]
        steps = sorted({one.info.id.step for one in kept}, reverse=True)
        row = source.row(prompt)
        if kept:
            new = [_new_sample(one, -1 - steps.index(one.info.id.step)) for one in kept]
            yield PromptGroup(None if row is None else msgspec.json.decode(row, type=Row), new)


def _unfit(response: Response) -> str:
    info = response.info
    if is_evaluation(info.id.step):
        return HELD_OUT
    if response.state == "dropped":
        return DROPPED
    return UNFINISHED if not info.length or info.finish_reason == "abort" else ""


def _new_sample(response: Response, step: int) -> NewSample:
    """Without its calls, parts and drafts, which no draft needs."""
    old = response.info
    info = SampleInfo(
        id=msgspec.structs.replace(old.id, step=step),
        prompt_length=old.prompt_length,
        length=old.length,
        finish_reason=old.finish_reason,
        versions=old.versions,
        reward=old.reward,
        turns=old.turns,
        earned=old.earned,
        turn_rewards=old.turn_rewards,
        forks=old.forks,
    )
    return NewSample(info, response.prompt_tokens, response.tokens, None)


async def _put(client: StoreClient, samples: list[NewSample], report: ImportReport) -> None:
    """One prompt's samples, except those that the store has."""
    history = await client.history(samples[0].info.id.prompt, 0, MOST_HISTORY)
    stored_by_id = {stored.info.id: stored for stored in history}
    fresh, unscored = [], []
    for sample in samples:
        if (stored := stored_by_id.get(sample.info.id)) is None:
            fresh.append(sample)
        else:
            same = np.array_equal(stored.tokens, np.asarray(sample.tokens))
            report.left_out[THERE if same else TAKEN] += 1
            if same and stored.info.reward is None:  # an earlier import was interrupted
                unscored.append(sample)
    for start in range(0, len(fresh), MESSAGE_SAMPLES):
        await client.put_samples(fresh[start : start + MESSAGE_SAMPLES])
    rewards = [(sample.info.id, sample.info.reward) for sample in fresh + unscored]
    await client.put_scores([Score(id=id, reward=reward) for id, reward in rewards if reward is not None])
    report.samples += len(fresh)
    report.tokens += sum(sample.info.length for sample in fresh)
    report.prompts += bool(fresh)
    report.epochs = max([report.epochs, *(-sample.info.id.step for sample in fresh)])


@contextlib.asynccontextmanager
async def _store(config: Config) -> AsyncIterator[StoreClient]:
    """The store of the run: the living one, or its folder opened here."""
    layout = layout_of(config)
    if is_open(layout.database):
        with contextlib.closing(connect(layout, "import", layout.keys("broker"))) as client:
            try:
                await client.stats(deadline_s=LIVING_S)
            except DeadlineExceeded:
                raise DeadlineExceeded(
                    f"{layout.database} is open in a store process that does not answer at {layout.store} within"
                    f" {LIVING_S:g} s: is CONFIG the configuration that it was started with?"
                ) from None
            yield client
        return
    config = config.model_copy(update={"net": Net()})  # only this process connects
    layout = layout_of(config)
    is_new = not layout.sockets.exists()
    try:
        async with contextlib.AsyncExitStack() as started:
            await started.enter_async_context(StoreService(config.store, layout).running())
            yield started.enter_context(contextlib.closing(connect(layout, "import")))
    finally:
        if is_new:
            shutil.rmtree(layout.sockets, ignore_errors=True)
