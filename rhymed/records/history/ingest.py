"""`rhymed history import`: an earlier run's responses as history of another run.

A prompt's newest epoch becomes step -1, the one before -2, and so on, so imported samples are older than all of the
run's own. Imported samples are never trained. They are written through the run's store: the living one, or one
started here for the import. An import can be repeated without harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from rhymed.core.config import Config, Net
from rhymed.core.errors import ConfigError, DataError, DeadlineExceeded
from rhymed.core.messages import Fork, SampleId, SampleInfo, Score
from rhymed.core.run.layout import layout_of
from rhymed.core.steps import is_evaluation
from rhymed.inputs.rows import Row
from rhymed.inputs.tokenizer import Vocabulary, read_vocabulary
from rhymed.records.history.export import META, arrow, rows, schema
from rhymed.records.history.folder import RunFolder, open_folder
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


def check_ids(source: Origin, size: int, owner: str) -> None:
    """Raises `DataError` if a token id is not in the owner's vocabulary: the source has another tokenizer."""
    for samples in source.prompts():
        for sample in samples:
            for name in ("prompt_tokens", "tokens"):
                largest = int(np.max(sample[name], initial=0))
                if largest >= size:
                    raise DataError(
                        f"{owner} has {size} tokens, but sample {_id(sample, sample['step'])} has the token id"
                        f" {largest}: it was made with another tokenizer; nothing was imported"
                    )


async def import_history(source: Origin, config: Config, wanted: Container[str] | None) -> ImportReport:
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


def _groups(source: Origin, wanted: Container[str] | None, report: ImportReport) -> Iterator[PromptGroup]:
    for samples in source.prompts():
        prompt = str(samples[0]["prompt_id"])
        if wanted is not None and prompt not in wanted:
            report.left_out[ELSEWHERE] += len(samples)
            continue
        kept = [sample for sample in samples if not (reason := _unfit(sample)) or report.left_out.update([reason])]
        steps = sorted({sample["step"] for sample in kept}, reverse=True)
        row = samples[0]["row"]
        if kept:
            new = [_new_sample(sample, -1 - steps.index(sample["step"])) for sample in kept]
            yield PromptGroup(None if row is None else msgspec.json.decode(row, type=Row), new)


def _unfit(sample: Sample) -> str:
    if is_evaluation(sample["step"]):
        return HELD_OUT
    if sample["state"] == "dropped":
        return DROPPED
    return UNFINISHED if not sample["length"] or sample["finish_reason"] == "abort" else ""


def _id(sample: Sample, step: int) -> SampleId:
    return SampleId(step=step, prompt=sample["prompt_id"], index=sample["index"])


def _new_sample(sample: Sample, step: int) -> NewSample:
    tokens, context = np.asarray(sample["tokens"], np.uint32), np.asarray(sample["prompt_tokens"], np.uint32)
    info = SampleInfo(
        id=_id(sample, step),
        prompt_length=len(context),
        length=len(tokens),
        finish_reason=sample["finish_reason"],
        versions=[(sample["policy_version"] or 0, len(tokens))],
        reward=sample["reward"],
        turns=list(sample["turns"] or ()),
        earned=sample["earned"],
        turn_rewards=list(sample["turn_rewards"] or ()),
        forks=msgspec.json.decode(sample["forks"] or "[]", type=list[Fork]),
    )
    return NewSample(info, context, tokens, None)


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


# Where imported history comes from: a run's folder, or a parquet file that `rhymed history export` wrote.
#
# Both yield prompt after prompt, all of its samples at once, as dictionaries with the keys of the file's schema.

Sample = dict[str, Any]
UNUSED = ("text", "drafted", "parts", "token_rewards", "calls")
"""Columns that an import does not need."""


class Origin(Protocol):
    vocabulary: Vocabulary

    def prompts(self) -> Iterator[list[Sample]]: ...


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Origin]:
    """Raises `ConfigError` for a path that is neither, `DataError` for another parquet file."""
    if path.is_file():
        if path.suffix != ".parquet":
            raise ConfigError(f"{path}: name a run's folder, or a .parquet file that `rhymed history export` wrote")
        yield _FileSource(path)
        return
    with open_folder(path) as folder:
        yield _RunSource(folder)


class _RunSource:
    def __init__(self, folder: RunFolder) -> None:
        self.vocabulary, self._browse = folder.vocabulary, folder.browse
        folder.decode = None  # the text is not imported
        self._folder = folder

    def prompts(self) -> Iterator[list[Sample]]:
        for prompt in self._browse.ids():
            yield rows(self._folder, prompt)


class _FileSource:
    def __init__(self, path: Path) -> None:
        self._path, pa = path, arrow()
        try:
            file_schema = pa.parquet.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable parquet file: {error}") from None
        self._columns = [name for name in schema().names if name not in UNUSED]
        if missing := [name for name in self._columns if name not in file_schema.names]:
            raise DataError(
                f"{path} is not a file of `rhymed history export`: no column {', '.join(missing)}; its columns:"
                f" {', '.join(file_schema.names)}"
            )
        about = json.loads((file_schema.metadata or {}).get(META, b"{}"))
        self.vocabulary = Vocabulary(about.get("size"), about.get("fingerprint", ""))

    def prompts(self) -> Iterator[list[Sample]]:
        before = ""
        for prompt, samples in groupby(self._rows(), key=lambda row: str(row["prompt_id"])):
            if prompt <= before:
                raise DataError(f"{self._path}: its rows are not in order of prompt_id, as an export writes them")
            before = prompt
            yield list(samples)

    def _rows(self) -> Iterator[Sample]:
        pa = arrow()
        try:
            with pa.parquet.ParquetFile(self._path) as file:
                for batch in file.iter_batches(batch_size=256, columns=self._columns):
                    yield from _unpack(batch)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._path}: not a readable parquet file: {error}") from None


def _unpack(batch: Any) -> list[Sample]:
    """Its rows, with token ids as arrays: as lists they would take twenty times the memory and time."""
    arrays = ("prompt_tokens", "tokens")
    found: list[Sample] = batch.select([name for name in batch.schema.names if name not in arrays]).to_pylist()
    for name in arrays:
        for row, tokens in zip(found, batch.column(name), strict=True):
            row[name] = tokens.values.to_numpy() if tokens.is_valid else ()
    return found
