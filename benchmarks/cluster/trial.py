"""One run of the trace engine as a process of its own, whose progress is read from its files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rhymed.core.config import Config
from rhymed.core.errors import RunFailed

LOOK_S = 0.1
END_S = 60.0
REWARD = '''"""A reward that depends on every token."""

import zlib


def reward(completions, **columns):
    return [zlib.crc32(text.encode()) % 1001 / 1000 for text in completions]
'''


def config(folder: Path, name: str, steps: int, workers: int, **sections: dict[str, Any]) -> Config:
    """Short samples with a long tail; no model. `sections` replace keys of the sections that are here."""
    given: dict[str, dict[str, Any]] = {
        "run": {"name": name, "folder": str(folder), "report": False},
        "data": {"path": str(folder / "rows.jsonl")},
        "rollout": {
            "engine": "trace",
            "workers": workers,
            "prompts_per_step": 4,
            "group_size": 4,
            "max_response_length": 400,
            "max_concurrency": 8,
            "save_every_s": 0.5,
        },
        "trace": {"mean_length": 60, "prompt_sigma": 0.6, "sample_sigma": 0.4, "step_s": 0.008, "token_s": 0.0002},
        "reward": {"workers": 1, "scorer": f"{folder / 'reward.py'}:reward", "processes": 1},
        "trainer": {"engine": "trace", "steps": steps, "epochs": 1_000_000, "checkpoint_every": 5},
        "schedule": {"heartbeat_s": 0.5, "lost_after_s": 5.0},
        "store": {"map_gib": 1.0},
        "net": {"http": ""},
    }
    for section, settings in sections.items():
        given[section] = {**given.get(section, {}), **settings}
    return Config.model_validate(given)


def on_ray(address: str) -> dict[str, dict[str, Any]]:
    """Sections of `config` for a run that is placed there; the links are open, on this machine alone."""
    cpus = {"trainer": 1.0, "rollout": 1.0, "reward": 1.0}
    return {
        "placement": {"engine": "ray", "address": address, "cpus": cpus},
        "net": {"http": "", "insecure": True},
    }


class Trial:
    """`with Trial(config) as run: run.until(5)`."""

    def __init__(self, wanted: Config, prefix: Sequence[str] = ()) -> None:
        """`prefix`: of its command line, e.g. to run it on another host."""
        self._prefix = list(prefix)
        place = Path(wanted.run.folder)
        place.mkdir(parents=True, exist_ok=True)
        rows = (json.dumps({"prompt": f"write down {number} things"}) + "\n" for number in range(40))
        (place / "rows.jsonl").write_text("".join(rows))
        (place / "reward.py").write_text(REWARD)
        self.folder = place / wanted.run.name
        self.file, self.output = place / f"{wanted.run.name}.json", place / f"{wanted.run.name}.out"
        self.file.write_text(wanted.model_dump_json(indent=1))
        self.steps = wanted.trainer.steps or 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.output.open("ab") as stream:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "rhymed", "run", "--plain", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def done(self) -> list[float]:
        """When each step was trained, by `time.time`; the newest time of a step that was trained again."""
        try:
            lines = (self.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        except OSError:
            return []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half written
        found = {int(row["step"]): float(row["time"]) for row in rows if "step" in row and "time" in row}
        return [found[step] for step in sorted(found)]

    def until(self, step: int, patience_s: float = 120.0) -> None:
        """Waits until so many steps are trained. `patience_s`: for each."""
        seen, since = -1, time.monotonic()
        while (count := len(self.done())) < step:
            if count != seen:
                seen, since = count, time.monotonic()
            self._check(time.monotonic() - since < patience_s, f"no step after {count} within {patience_s:g} s")
            time.sleep(LOOK_S)

    def wait_for(self, condition: Callable[[], bool], what: str, patience_s: float = 120.0) -> None:
        end = time.monotonic() + patience_s
        while not condition():
            self._check(time.monotonic() < end, f"{what}: not within {patience_s:g} s")
            time.sleep(LOOK_S)

    def finish(self, patience_s: float = 120.0) -> None:
        """Waits for its last step and for its end."""
        assert self._process is not None
        self.until(self.steps, patience_s)
        status = self._process.wait(patience_s)
        if status:
            raise RunFailed(f"the run ended with status {status}:\n{self.tail()}")

    def tail(self, lines: int = 20) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def _check(self, good: bool, why: str) -> None:
        assert self._process is not None
        if not good or self._process.poll() not in (None, 0):
            raise RunFailed(f"{why if not good else f'status {self._process.returncode}'}:\n{self.tail()}")
