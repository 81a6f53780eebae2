"""A run of the trace engine as real processes, for tests that observe it.

There is no model: responses are synthetic and `trainer.engine = trace`, so only rhymed is measured. The run is a
`rhymed run` in a process of its own. It is observed from outside: process names, the broker's answer to GetQueues,
and the store's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import RhymedError
from rhymed.core.messages import Queues
from rhymed.core.run.client import ask
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.wire.sockets import Client
from rhymed_store.browse import Browse, StoreReader

REWARD = '''"""A reward that depends on every token."""

import zlib


def reward(completions, **columns):
    return [zlib.crc32(text.encode()) % 1001 / 1000 for text in completions]
'''

LOOK_S = 0.2
ASK_S = 1.0
END_S = 60.0
ROLES = ("store", "broker", "trainer", "rollout", "environment", "reward", "scorer", "tool", "engine")
TOOLS = ("rhymed_workers.environment.hosting.child", "rhymed_workers.sessions.child")
"""In the command line of the jail of a process with tools, or of a program."""
ENGINE = "EngineCore"  # in the name of the process that vLLM starts for it


class Part(NamedTuple):
    """A process of the run."""

    pid: int
    name: str  # e.g. rollout-0; a scoring process: scorer; one with tools, or a program: tool; vLLM's: engine
    role: str  # one of ROLES


class Point(NamedTuple):
    """The run's progress at one moment."""

    at: float  # time.monotonic
    samples: int  # in the store
    tokens: int  # in the store, and of running samples
    step: int


@dataclass(frozen=True)
class Shape:
    """The size of a run. Samples are short with a long tail: a few live longer than most processes do."""

    steps: int = 200
    rollout: int = 3
    reward: int = 2
    epochs: float = 3.3  # of the dataset, in all steps
    prompts: int = 0  # in the dataset; 0: as many as give `epochs` epochs
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # by section, over those of `config`
    scorer: str = REWARD  # the text of its file
    override: Sequence[str] = ()  # KEY=VALUE, over that

    def config(self, folder: Path, name: str) -> Config:
        given: dict[str, dict[str, Any]] = {
            "run": {"name": name, "folder": str(folder)},
            "data": {"path": str(folder / "rows.jsonl")},
            "rollout": {
                "engine": "trace",
                "workers": self.rollout,
                "prompts_per_step": 4,
                "group_size": 4,
                "max_response_length": 2000,
                "max_concurrency": 8,
            },
            "trace": {
                "mean_length": 60,
                "prompt_sigma": 0.9,
                "sample_sigma": 0.5,
                "step_s": 0.004,
                "token_s": 0.0002,
            },
            "reward": {"workers": self.reward, "scorer": f"{folder / 'reward.py'}:reward", "processes": 1},
            "trainer": {"engine": "trace", "steps": self.steps, "epochs": 1_000_000, "checkpoint_every": 5},
            "schedule": {"heartbeat_s": 0.3, "lost_after_s": 3.0},
            "store": {"map_gib": 1.0},
            "net": {"http": ""},
        }
        for section, settings in self.settings.items():
            given[section] = {**given.get(section, {}), **settings}
        return Config.model_validate(given)

    def write(self, folder: Path, name: str) -> Path:
        """Writes dataset, reward and configuration. Returns the configuration's file."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.json"
        file.write_text(self.config(folder.resolve(), name).model_dump_json())
        config = load_config(file, list(self.override), {})
        per_step = config.rollout.prompts_per_step
        prompts = self.prompts or max(per_step, round(self.steps * per_step / self.epochs))
        rows = ({"prompt": f"write down {number} things"} for number in range(prompts))
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "reward.py").write_text(self.scorer)
        file.write_text(config.model_dump_json(indent=1))
        return file


def with_model(folder: Path, ranks: int, hidden: int = 64, layers: int = 2) -> dict[str, dict[str, Any]]:
    """Settings with which a tiny real model is trained, by so many ranks on processors."""
    from tests.tiny import write_tiny_model

    if not (folder / "model").exists():
        write_tiny_model(folder / "model", hidden, layers)
    return {
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "rollout": {"max_prompt_length": 64, "max_response_length": 200},
        "trace": {"vocabulary": 250, "mean_length": 30},
        "trainer": {
            "engine": "torch",
            "device": "cpu",
            "ranks": ranks,
            "threads": 1,
            "lr": 1e-4,
            "checkpoint_every": 3,
        },
    }


class LiveRun:
    """`with LiveRun(config_file) as run: …`: runs it in the background; leaving the block ends it.

    `prefix`: of its command line, e.g. to run it on another host.
    """

    def __init__(self, file: Path, prefix: Sequence[str] = ()) -> None:
        self._file, self._prefix = file, list(prefix)
        self.config = Config.model_validate_json(file.read_text())
        self.where: RunLayout = layout_of(self.config)
        self.output = file.with_suffix(".out")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LiveRun:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupt()

    def start(self, *, resume: bool = False, options: Sequence[str] = ()) -> None:
        which = ["--resume", str(self.where.folder), *options] if resume else [str(self._file), *options]
        with self.output.open("ab") as stream:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "rhymed", "run", "--plain", *which],
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """Exit status of the supervisor; None: it runs."""
        return self._process.poll() if self._process is not None else None

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for the exit status; None: it still runs after `seconds`."""
        assert self._process is not None, "it was started"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode

    async def ended(self) -> int | None:
        """Waits for the exit status."""
        return await asyncio.to_thread(self.wait)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def interrupt(self) -> int | None:
        """Interrupts it as a user does. Returns the exit status."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        if self._process.poll() is None:
            self.kill_all()
        return self._process.returncode

    def parts(self) -> list[Part]:
        """The live processes without the supervisor."""
        with contextlib.suppress(psutil.Error):
            return [part for child in psutil.Process(self.pid).children(recursive=True) if (part := part_of(child))]
        return []

    def kill_all(self) -> None:
        """Kills all processes at once, the supervisor first, so that none can react."""
        assert self._process is not None, "it was started"
        with contextlib.suppress(psutil.Error):
            whole = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in whole:
                    send(process.pid, number)
        self._process.wait()

    @contextlib.contextmanager
    def browse(self) -> Iterator[Browse]:
        """Reads the store's files. Raises `StoreError` while there are none."""
        with StoreReader(self.where.database) as reader:
            yield reader.browse

    def tail(self, lines: int = 6) -> str:
        """The last lines of its output."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])


class Watch:
    """Records the progress of a live run five times per second, until it is cancelled."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self.points: list[Point] = []
        self.queues: Queues | None = None  # the newest
        self.asked_at = 0.0  # when it asked for them
        self.stored = 0  # samples in the store
        self.lost = 0  # samples that disappeared from the store

    async def run(self) -> None:
        client = Client(self._run.where.broker, peer="broker")
        try:
            while True:
                started = time.monotonic()
                with contextlib.suppress(RhymedError):
                    self.queues = await ask(client, brief=False, deadline_s=ASK_S)
                    self.asked_at = started
                with contextlib.suppress(RhymedError, OSError):
                    self._look()
                await asyncio.sleep(max(0.0, started + LOOK_S - time.monotonic()))
        finally:
            client.close()

    def _look(self) -> None:
        with self._run.browse() as browse:
            totals = browse.totals()
        self.lost += max(0, self.stored - totals.samples)
        self.stored = totals.samples
        held = 0
        if self.queues is not None:
            held = sum(one.tokens for row in self.queues.workers if row.role == "rollout" for one in row.holding)
        step = self.queues.step if self.queues is not None else 0
        self.points.append(Point(time.monotonic(), totals.samples, totals.tokens + held, step))


def send(pid: int, number: signal.Signals) -> bool:
    """False: the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def part_of(process: psutil.Process) -> Part | None:
    try:
        words = " ".join(process.cmdline()).split()
        if process.status() == psutil.STATUS_ZOMBIE or not words:
            return None
    except psutil.Error:
        return None
    name = name_of(words)
    role = name.partition("-")[0]
    return Part(process.pid, name, role) if role in ROLES else None


def name_of(words: Sequence[str]) -> str:
    """A process's name from its command line, before or after it has set its title."""
    if "--name" in words[:-1]:
        return words[words.index("--name") + 1]
    if any(name in word for word in words for name in TOOLS):
        return "tool"
    if any(word.startswith("rhymed_workers.") for word in words):
        return "scorer"
    if any(ENGINE in word for word in words):
        return "engine"
    if words[0] == "rhymed" and len(words) == 2:
        return words[1]
    if words[1:3] == ["-m", "rhymed"] and len(words) > 3:
        return words[3]
    return ""
