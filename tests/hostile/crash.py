"""`python -m tests.hostile.crash`: kill the store thousands of times under load. Acknowledged data must be there.

A real store process gets `kill -9` at seeded random moments, also while it starts. Several clients put samples of
many sizes, partial samples, scores and marks, and delete log-probs. After each kill the file is verified,
acknowledged data is compared bit for bit, and data that was only requested must be there completely or not at all. A
kill leaves the operating system alive: for power loss see tests/store/database/test_power_loss.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from rhymed.core.config import Config
from rhymed.core.errors import DeadlineExceeded, RhymedError, StoreError
from rhymed.core.messages import GetPartials, GetSamples, SampleId, SampleInfo, Score
from rhymed.core.run.layout import layout_of
from rhymed_store.browse import Browse
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.database.reads import SampleRecord
from rhymed_store.database.tables import Reader
from rhymed_store.verify import verify
from tests.stress import command

CUTS, QUICK_CUTS = 3000, 100
CUTS_A_FOLDER = 25  # then a new one: every byte is read after each kill
CLIENTS, LIVES = 4, 24
LENGTHS = (0, 3, 60, 500, 4000, 30_000)
PART, MOST_PARTS = 30, 8
STATES = ("absent", "generated", "scored", "trained")
START_S = 60.0  # for a store to answer, on a busy machine

ZYGOTE = """
import os, signal, sys
from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of
from rhymed.core.service.process import serve
from rhymed_store.service import StoreService
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    config = Config.model_validate_json(line)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve(lambda: StoreService(config.store, layout_of(config)))
    print(child, flush=True)
"""
"""Imports once, then forks a store for each line: a start takes milliseconds, so thousands are possible."""


@dataclass
class Fate:
    """What was requested for a sample, and what was acknowledged."""

    id: SampleId
    length: int
    parts: tuple[int, int] = (0, 0)  # tokens of its beginning: acknowledged, asked
    stage: tuple[int, int] = (0, 0)  # index into STATES: acknowledged, asked

    def sample(self) -> NewSample:
        """Determined by the id, so it can be compared after any number of crashes."""
        rng = np.random.default_rng([self.id.step, self.id.index, int(self.id.prompt, 16), self.length])
        runs = [(self.id.step, self.length)] if self.length else []
        info = SampleInfo(id=self.id, prompt_length=7, length=self.length, finish_reason="stop", versions=runs)
        tokens = rng.integers(0, 49_152, self.length).astype(np.uint32)
        logprobs, drafted = -rng.random(self.length, np.float32), rng.random(self.length) < 0.8
        return NewSample(info, np.arange(7, dtype=np.uint32), tokens, logprobs, drafted)

    @property
    def reward(self) -> float:
        return self.id.index / 7


@dataclass
class Tally:
    kills: int = 0
    acknowledged: int = 0  # operations
    samples: int = 0  # of these, samples put
    compared: int = 0  # samples read back and compared, one after each kill that it has seen
    lost: list[str] = field(default_factory=list)  # what was acknowledged and is not there, or is not what was put
    starts_s: list[float] = field(
        default_factory=list
    )  # from fork to the first answer, over the file of a killed one


def run(quick: bool, kills: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Kills, compares and prints. Returns the numbers."""
    with tempfile.TemporaryDirectory(prefix="rhymed-crash-") as folder:
        tally = cut(Path(folder), kills or (QUICK_CUTS if quick else CUTS), seed)
    result = {
        "kills": float(tally.kills),
        "acknowledged operations": float(tally.acknowledged),
        "acknowledged samples": float(tally.samples),
        "compared samples": float(tally.compared),
        "lost or torn": float(len(tally.lost)),
        "start ms, median": 1000 * statistics.median(tally.starts_s),
        "start ms, longest": 1000 * max(tally.starts_s),
    }
    for name, value in result.items():
        print(f"{name:<28} {value:>12,.1f}")
    for line in tally.lost[:20]:
        print(line)
    return result | {"good": not tally.lost}


def cut(folder: Path, cuts: int, seed: int) -> Tally:
    """Kills a store `cuts` times, in stores below `folder`."""
    rng, tally = random.Random(seed), Tally()
    with zygote(folder / "stores.log") as stores:
        for number in range(0, cuts, CUTS_A_FOLDER):
            durability = "sync" if number // CUTS_A_FOLDER % 2 == 0 else "async"
            store = {"map_gib": 0.5, "durability": durability}
            config = Config.model_validate({"run": {"folder": str(folder), "name": f"{number}"}, "store": store})
            uvloop.run(StoreHistory(config, stores, rng, tally).play(min(CUTS_A_FOLDER, cuts - number)))
    return tally


@contextlib.contextmanager
def zygote(log: Path, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ZYGOTE]
    env = {**os.environ, **(environment or {})}
    with log.open("w") as said:
        stores = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=env
        )
        try:
            yield stores
        except DeadlineExceeded:
            raise StoreError(f"a store did not start: {log.read_text()[-4000:]}") from None
        finally:
            stores.kill()
            stores.communicate()


class StoreHistory:
    """One folder, from its first store process to its last."""

    EARLY, LOAD_S = 0.3, 0.15  # share of those that are killed while they start; at most, of the others

    def __init__(self, config: Config, zygote: subprocess.Popen[str], rng: random.Random, tally: Tally) -> None:
        self._config, self._zygote, self._rng, self._tally = config, zygote, rng, tally
        self._where = layout_of(config)
        self._fates: list[Fate] = []
        self._forgotten = (0, 0)  # acknowledged, asked
        self.ends: list[BaseException] = []  # of clients

    async def play(self, cuts: int) -> None:
        """The clients stay, as workers do: requests to a killed store reach the next one first."""
        self._clients = [StoreClient(self._where.store, f"client-{number}") for number in range(CLIENTS)]
        try:
            for step in range(cuts):
                await self._live_until_killed(step)
                self._tally.kills += 1
                self._compare()
        finally:
            for client in self._clients:
                client.close()

    async def _live_until_killed(self, step: int) -> None:
        began, process = time.perf_counter(), self._fork()
        work = [asyncio.create_task(self._work(self._clients[n % CLIENTS], step, n)) for n in range(LIVES)]
        work += [asyncio.create_task(self._forget(self._clients[0], step))]
        try:
            if self._rng.random() < self.EARLY:
                await asyncio.sleep(self._rng.uniform(0, 0.06))  # while it starts, or looks at what is there
            elif await self.started():
                self._tally.starts_s.append(time.perf_counter() - began)
                await self.under_load()
        finally:
            await _kill(process)
            for task in work:
                task.cancel()
            self.ends += [end for end in await asyncio.gather(*work, return_exceptions=True) if end]

    async def started(self) -> bool:
        """Waits for the first answer."""
        await self._clients[1].stats(deadline_s=START_S)
        return True

    async def under_load(self) -> None:
        """Until it is killed."""
        await asyncio.sleep(self._rng.uniform(0, self.LOAD_S))

    def _fork(self) -> int:
        assert self._zygote.stdin is not None, "it was started with pipes"
        assert self._zygote.stdout is not None, "it was started with pipes"
        self._zygote.stdin.write(self._config.model_dump_json() + "\n")
        self._zygote.stdin.flush()
        return int(self._zygote.stdout.readline())

    async def _work(self, client: StoreClient, step: int, number: int, first: int = 0) -> None:
        """What an earlier store left undone first, as its callers would; then new samples, from the `first` on."""
        mine = [fate for fate in self._fates if fate.id.index % LIVES == number and fate.stage[0] < 3]
        for fate in mine:
            if fate.id.step >= self._forgotten[1]:
                await self._live(client, fate)
        rng = random.Random(f"{step}/{number}/{first}/{self._where.folder.name}")
        for index in range(number + first * LIVES, 1 << 16, LIVES):
            fate = Fate(SampleId(step, f"{rng.randrange(4):016x}", index), rng.choice(LENGTHS))
            self._fates.append(fate)
            await self._live(client, fate)

    async def _live(self, client: StoreClient, fate: Fate) -> None:
        sample, id = fate.sample(), fate.id
        if fate.stage[1] == 0:
            tokens = np.asarray(sample.tokens)
            for start in range(fate.parts[0], min(fate.length, PART * MOST_PARTS), PART):
                end = min(start + PART, fate.length)
                fate.parts = (fate.parts[0], max(end, fate.parts[1]))
                await client.put_partials({id: (start, tokens[start:end])})
                fate.parts = (end, fate.parts[1])
                self.acknowledged(fate)
        if fate.stage[0] < 1:
            await self._reach(fate, 1, client.put_samples([sample]))
            self._tally.samples += 1
        if fate.stage[0] < 2:
            await self._reach(fate, 2, client.put_scores([Score(id=id, reward=fate.reward)]))
        if id.index % 3:  # others are left to the checkpoint
            await self._reach(fate, 3, client.mark([id], "trained"))

    async def _reach(self, fate: Fate, stage: int, asked: Any) -> None:
        fate.stage = (fate.stage[0], max(stage, fate.stage[1]))
        await asked
        fate.stage = (max(stage, fate.stage[0]), fate.stage[1])
        self.acknowledged(fate)

    async def _forget(self, client: StoreClient, step: int) -> None:
        while True:
            await asyncio.sleep(0.03)
            self._forgotten = (self._forgotten[0], max(self._forgotten[1], step - 1))
            await client.forget_logprobs(step - 1)
            self._forgotten = (max(self._forgotten[0], step - 1), self._forgotten[1])
            self.acknowledged()

    def acknowledged(self, fate: Fate | None = None) -> None:
        """Something about this sample; None: that log-probs were deleted."""
        self._tally.acknowledged += 1

    def _compare(self) -> None:
        self.compare(self._where.database)

    def compare(self, database: Path, *, verified: bool = True) -> None:
        """All samples with what a database holds. `verified`: also what no sample refers to."""
        lost, file = self._tally.lost, database / "data.mdb"
        if not file.exists() or not file.stat().st_size:
            if any(fate.stage[0] or fate.parts[0] for fate in self._fates):
                lost.append(f"{file}: gone")
            return
        try:
            if verified:
                lost += [f"{file}: {finding}" for finding in verify(database).findings]
            with Reader(database) as reader:
                browse = Browse(reader)
                there = {found.sample: found.record for prompt in browse.ids() for found in browse.headers(prompt)}
                for fate in self._fates:
                    if problem := self._problem(browse, fate, there.get(fate.id)):
                        lost.append(f"{file}: sample {fate.id}: {problem}")
        except RhymedError as error:
            if any(fate.stage[0] or fate.parts[0] for fate in self._fates):
                lost.append(f"{file}: {error}")

    def _problem(self, browse: Browse, fate: Fate, record: Any) -> str:
        """What is wrong with it; empty: nothing."""
        if record is None:
            return f"it was {STATES[fate.stage[0]]}, and is not there" if fate.stage[0] else self._part(browse, fate)
        self._tally.compared += 1
        low, high = fate.stage
        if fate.id.step < self._forgotten[1] and high >= 2:
            high = 3  # the checkpoint has it
        if not max(low, 1) <= STATES.index(record.state) <= high:
            return f"it is {record.state}, {STATES[low]} was acknowledged, {STATES[high]} asked"
        sample, live = fate.sample(), fate.id.step >= self._forgotten[1]
        asked = GetSamples(samples=[fate.id], logprobs=live, prompt_tokens=True)
        (info,), arrays = browse.samples(asked)[0].samples, browse.samples(asked)[1]
        wanted = [sample.tokens, *([sample.logprobs] if live else []), sample.prompt_tokens]
        if [bytes(array) for array in arrays] != [np.asarray(array).tobytes() for array in wanted]:
            return "its arrays are not those that were put"
        (drafted,) = browse.drafted([SampleRecord(fate.id, record)])
        if drafted is None or sample.drafted is None or bytes(drafted) != bytes(sample.drafted):
            return "its accepted drafts are not those that were put"
        if info.reward != (fate.reward if record.state != "generated" else None) or info.length != fate.length:
            return f"it is {info}"
        return ""

    def _part(self, browse: Browse, fate: Fate) -> str:
        if fate.id.step < self._forgotten[1]:
            return ""
        answer, (tokens,) = browse.partials(GetPartials(samples=[fate.id]))
        length, wanted = sum(answer.lengths), np.asarray(fate.sample().tokens)
        if not fate.parts[0] <= length <= fate.parts[1]:
            return f"{length} tokens of its beginning, {fate.parts[0]} were acknowledged, {fate.parts[1]} asked"
        return "" if bytes(tokens) == wanted[:length].tobytes() else "its beginning is not what was put"


async def _kill(process: int) -> None:
    """Kills it and waits until the system has closed its files."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        await asyncio.to_thread(select.select, [handle], [], [], START_S)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def main() -> int:
    parser = command.parser("tests.hostile.crash", "kill the store under load and compare what it acknowledged")
    parser.add_argument("--kills", type=int, metavar="N", help=f"how many (default: {CUTS})")
    parser.add_argument("--seed", type=int, metavar="N", help="of the moments and the data")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
