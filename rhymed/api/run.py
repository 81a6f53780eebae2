"""`rhymed.open_run`: what a run's folder holds, as tables and paths. Works next to a living run.

Everything is read when it is asked for; nothing is kept open.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rhymed.api.child import Child, Outcome
from rhymed.api.display import choose
from rhymed.api.samples import history_rows, sample_rows
from rhymed.api.start import Rows, evaluate
from rhymed.api.tables import As, table
from rhymed.api.waiting import in_thread
from rhymed.config import Config
from rhymed.config.load import load_run
from rhymed.errors import CheckpointError, ConfigError
from rhymed.run import checkpoint as checkpoints
from rhymed.run import folder as runs
from rhymed.run.layout import RunLayout
from rhymed.run.state import State, state_of


def open_run(path: str | os.PathLike[str] = "runs/latest") -> Run:
    """The run in this folder, living or not. Raises `ConfigError` if it is not a run's folder."""
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(runs.no_run(folder))
    return Run(folder.resolve())


class Run:
    """A run's folder. Tables are pandas' if it is installed, else lists of dicts; `as_` chooses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.state}, step {self.step})"

    @cached_property
    def config(self) -> Config:
        """As the run was started with it, defaults included. Raises `ConfigError`."""
        return load_run(self.folder)

    @property
    def name(self) -> str:
        return self.config.run.name

    @property
    def state(self) -> State:
        """stopped: neither alive nor finished; it can be resumed."""
        return state_of(self.folder)

    @property
    def step(self) -> int:
        """Number of trained steps."""
        return max((int(row["step"]) + 1 for row in runs.read_metrics(self._layout)), default=0)

    def metrics(self, as_: As | None = None) -> Any:
        """A row per trained step; docs/metrics.md explains the columns. `step` counts from 0."""
        return table(runs.read_metrics(self._layout), as_)

    def evaluations(self, as_: As | None = None) -> Any:
        """A row per evaluation during training; `step` is the number of steps trained before it."""
        return table(runs.read_evaluations(self._layout), as_)

    def samples(
        self,
        *,
        step: int | None = None,
        limit: int | None = None,
        token_stats: bool = False,
        as_: As | None = None,
    ) -> Any:
        """A row per sample, in order of prompt, step, index: prompt, text, reward, length, finish_reason, tokens and
        the others of `rhymed history export`. `step`: of this training step only; `limit`: the first so many.
        `token_stats`: also lists of one number per token, as training computed them: `trainer/logprob`,
        `trainer/entropy`, `trainer/mismatch`, `trainer/advantage`, and the policy's `trainer/version`; None where the
        store has none. Raises `ConfigError` or `StoreError`."""
        return table(sample_rows(self.folder, step, limit, token_stats=token_stats), as_)

    def history(self, prompt: str, as_: As | None = None) -> Any:
        """All samples of one prompt, oldest first. `prompt`: its id, the id's first digits, or words of its text.
        Raises `DataError` unless exactly one prompt is meant."""
        return table(history_rows(self.folder, prompt), as_)

    def checkpoint(self, which: int | Literal["latest"] = "latest") -> Path:
        """The folder of the newest intact checkpoint, or of the one after so many steps: a model that transformers
        reads, or an adapter that PEFT reads. Blocking: verifies all of it. Raises `CheckpointError`."""
        there = self._layout.checkpoints
        found = checkpoints.newest(there) if which == "latest" else checkpoints.at_step(there, which)
        if found is None:
            steps = ", ".join(str(one.step) for one in checkpoints.checkpoints_in(there)) or "none"
            raise CheckpointError(f"checkpoint {which}: not in {there}, or damaged; steps there: {steps}")
        return found.folder

    def evaluate(
        self,
        checkpoint: int | str | os.PathLike[str] | None = "latest",
        *,
        dataset: Rows = None,
        progress: bool | None = None,
        **settings: Any,
    ) -> dict[str, dict[str, float]]:
        """mean@k and pass@k on held-out prompts, as `rhymed eval` computes them: dataset -> metric -> value.

        checkpoint: latest, a number of trained steps, the folder of a model or adapter, or None for the model that
        the run began with. dataset: held-out rows as `eval_dataset` of `rhymed.train`; None: those of the run.
        settings: as in `rhymed.train`, e.g. eval={"samples": 4}. Raises what `rhymed.train` raises.
        """
        child, display = self._evaluating(checkpoint, dataset, settings), choose(progress)
        return _results(child.follow(display))

    async def evaluate_async(
        self,
        checkpoint: int | str | os.PathLike[str] | None = "latest",
        *,
        dataset: Rows = None,
        progress: bool | None = None,
        **settings: Any,
    ) -> dict[str, dict[str, float]]:
        """As `evaluate`, without blocking the event loop."""
        display = choose(progress)
        child = await in_thread(lambda: self._evaluating(checkpoint, dataset, settings))
        return _results(await in_thread(lambda: child.follow(display), child.interrupt))

    @property
    def _layout(self) -> RunLayout:
        """Paths alone: they follow from the folder, also after it was moved."""
        return RunLayout(folder=self.folder, broker="", store="", weights="", sockets=self.folder)

    def _evaluating(self, checkpoint: int | str | os.PathLike[str] | None, dataset: Rows, changes: Any) -> Child:
        job = evaluate(self.folder, "" if checkpoint is None else str(checkpoint), dataset, changes)
        return Child(job.arguments)


def _results(outcome: Outcome) -> dict[str, dict[str, float]]:
    if outcome.error is not None:
        raise outcome.error
    if outcome.folder is None or outcome.interrupted:
        raise KeyboardInterrupt("the evaluation was stopped")
    return dict(json.loads((outcome.folder / "eval.json").read_text())["datasets"])
