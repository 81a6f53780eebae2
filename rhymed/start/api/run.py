"""`rhymed.open_run`: what a run's folder holds, as tables and paths. Works next to a living run.

`Run` is the interface, `sample_rows` makes its rows. Everything is read when it is asked for; nothing is
kept open.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rhymed.core.config import Config
from rhymed.core.config.load import load_run
from rhymed.core.errors import CheckpointError, ConfigError, DataError
from rhymed.core.output import show
from rhymed.core.run import checkpoint as checkpoints
from rhymed.core.run import folder as runs
from rhymed.core.run.layout import RunLayout, paths_of
from rhymed.core.run.state import State, state_of
from rhymed.core.text import truncated
from rhymed.inputs.rows import prompt_text
from rhymed.records.history.export import plain, rows
from rhymed.records.history.folder import RunFolder, open_folder
from rhymed.records.history.show import find
from rhymed.start.api.child import Outcome, call
from rhymed.start.api.start import Asked, Job, Reward, Rows, evaluate, resume, start


def open_run(path: str | os.PathLike[str] = "runs/latest") -> Run:
    """The run in this folder, living or not. Raises `ConfigError` if it is not a run's folder."""
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(runs.no_run(folder))
    return Run(folder.resolve())


class Run:
    """A run's folder. Its tables are lists of dicts, as pandas.DataFrame and pyarrow.Table.from_pylist take them."""

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

    def metrics(self) -> list[dict[str, Any]]:
        """A row per trained step; docs/metrics.md explains the columns. `step` counts from 0."""
        return runs.read_metrics(self._layout)

    def evaluations(self) -> list[dict[str, Any]]:
        """A row per evaluation during training; `step` is the number of steps trained before it."""
        return runs.read_evaluations(self._layout)

    def samples(self, *, step: int | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """A row per sample, in order of prompt, step, index: prompt, text, reward, length, finish_reason, tokens and
        the others of `rhymed history export`. `step`: of this training step only; `limit`: the first so many.
        Raises `ConfigError` or `StoreError`."""
        return sample_rows(self.folder, step, limit)

    def history(self, prompt: str) -> list[dict[str, Any]]:
        """All samples of one prompt, oldest first. `prompt`: its id, the id's first digits, or words of its text.
        Raises `DataError` unless exactly one prompt is meant."""
        return history_rows(self.folder, prompt)

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
        progress: bool = True,
        **settings: Any,
    ) -> dict[str, dict[str, float]]:
        """mean@k and pass@k on held-out prompts, as `rhymed eval` computes them: dataset -> metric -> value.

        checkpoint: latest, a number of trained steps, the folder of a model or adapter, or None for the model that
        the run began with. dataset: held-out rows as `eval_dataset` of `rhymed.train`; None: those of the run.
        settings: as in `rhymed.train`, e.g. eval={"samples": 4}. Raises what `rhymed.train` raises.
        """
        job = evaluate(self.folder, "" if checkpoint is None else str(checkpoint), dataset, settings)
        return _results(call(job.arguments, progress=progress))

    @property
    def _layout(self) -> RunLayout:
        return paths_of(self.folder)


def _results(outcome: Outcome) -> dict[str, dict[str, float]]:
    if outcome.error is not None:
        raise outcome.error
    if outcome.folder is None or outcome.interrupted:
        raise KeyboardInterrupt("the evaluation was stopped")
    return dict(json.loads((outcome.folder / "eval.json").read_text())["datasets"])


# A run's samples as rows: those of `rhymed history export`, with the prompt's text and a column per scorer.

NAMED = 5  # prompts in an error


def sample_rows(folder: Path, step: int | None, limit: int | None) -> list[dict[str, Any]]:
    """Raises `ConfigError`, `StoreError`."""
    with open_folder(folder) as run:
        found = (row for prompt in run.browse.ids() for row in _of_prompt(run, prompt))
        wanted = found if step is None else (row for row in found if row["step"] == step)
        return _with_equal_columns(list(itertools.islice(wanted, limit)))


def history_rows(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """Of the one prompt that is meant. Raises `DataError`, `ConfigError`, `StoreError`."""
    with open_folder(folder) as run:
        found = find(run.browse, wanted)
        if len(found) > 1:
            texts = [f"{each} ({truncated(prompt_text(run.browse.row(each)), 40)!r})" for each in found[:NAMED]]
            raise DataError(f"{wanted!r} fits {len(found)} prompts: {', '.join(texts)}; name one by its id")
        return _with_equal_columns(list(_of_prompt(run, found[0])))


def _of_prompt(run: RunFolder, prompt: str) -> Iterator[dict[str, Any]]:
    text = prompt_text(run.browse.row(prompt))
    for row in rows(run, prompt):
        parts = json.loads(row.pop("parts") or "{}")
        yield {"prompt": text, **plain(row), **{f"reward/{name}": value for name, value in parts.items()}}


def _with_equal_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """None where a row lacks a column of another one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


# `rhymed.train`: `rhymed run`, for scripts and notebooks.

ConfigLike = str | os.PathLike[str] | Mapping[str, Any] | Config


def train(
    config: ConfigLike | None = None,
    *,
    model: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    dataset: Rows = None,
    eval_dataset: Rows = None,
    reward: Reward | None = None,
    tools: Sequence[Callable[..., Any]] | str | None = None,
    environment_factory: Callable[..., Any] | str | None = None,
    resume: Run | str | os.PathLike[str] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Trains a model as `rhymed run` does, shows the progress, and returns the finished run.

    config: a TOML file's name, a dict of sections, or a `Config`; None: the defaults.
    model: a folder, a GGUF file, a hub id, or a dict of settings of [model].
    dataset: a list of dicts, a `datasets.Dataset`, a `pandas.DataFrame`, or the name of a file or of a dataset on a
        hub. Objects are written to `inputs/rows.jsonl` in the run's folder. None: an `environment_factory` writes the
        prompts in `reset()`, in as many episodes as `steps` takes; else a task has to be named (`data={"task": …}`).
    eval_dataset: held-out rows in the same forms, or a dict of name -> rows. See `eval.every` and `Run.evaluate`.
    reward: a function with TRL's parameters (completions, **columns -> list of floats) or verl's (data_source,
        solution_str, ground_truth, extra_info -> float), the name of a built-in scorer, `"file.py:function"`, a
        list of these, whose sum is the reward, or a dict of settings of [reward]. A function of a notebook or of
        the script itself is copied to `inputs/` in the run's folder, see docs/python.md. What an environment's
        `get_reward()` gives is added, as in TRL; with an environment, None: that alone.
    tools: functions that the policy may call, as TRL's `tools`: with type hints and a docstring that describes each
        argument; or `"file.py:a,b"`. See docs/agents.md.
    environment_factory: a class of environments as TRL's, or as SkyRL-Gym's BaseTextEnv; or `"file.py:Class"`.
    resume: a run, or its folder, to continue; `settings` may change what does not belong to its identity.
    progress: in place in a terminal, and one line per step in a notebook; False: nothing is printed.
    settings: any key of docs/config.md, later than file and environment: `lr=1e-5`, `trainer={"lr": 1e-5}` or
        `**{"trainer.lr": 1e-5}`. A key of another section than trainer, rollout and run needs its section.

    An interrupt (Ctrl-C, or a notebook's stop button) stops all processes, which keeps every stored sample, and
    raises `KeyboardInterrupt`; `rhymed.train(resume="runs/NAME")` continues. Raises `ConfigError`, `DataError`,
    `RewardError` and others of `rhymed.core.errors` with the sentences of the command line; `RunFailed` where a
    process failed for good.
    """
    asked = Asked(config, model, dataset, eval_dataset, reward, settings, tools, environment_factory)
    job = _prepared(asked, resume)
    if progress and job.renamed:
        show(f"warning  another run has the name: this one is called {job.renamed}", flush=True)
    return _judged(job, call(job.arguments, progress=progress))


def _prepared(asked: Asked, earlier: Run | str | os.PathLike[str] | None) -> Job:
    if earlier is None:
        return start(asked)
    return resume(asked, earlier.folder if isinstance(earlier, Run) else Path(earlier))


def _judged(job: Job, outcome: Outcome) -> Run:
    if outcome.folder is None:
        job.discard()
    if outcome.error is not None:
        raise outcome.error
    if outcome.folder is None:
        raise KeyboardInterrupt("interrupted before the run was started")
    if outcome.interrupted:
        raise KeyboardInterrupt(f"the run was stopped; rhymed.train(resume={str(outcome.folder)!r}) continues it")
    return Run(outcome.folder)
