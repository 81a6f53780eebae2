"""`rhymed.train` and `rhymed.train_async`: `rhymed run`, for scripts and notebooks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rhymed.api.child import Child, Outcome
from rhymed.api.display import Display, choose
from rhymed.api.run import Run
from rhymed.api.start import Asked, Job, Reward, Rows, resume, start
from rhymed.api.waiting import in_thread
from rhymed.config import Config
from rhymed.launch.events import Line

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
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Trains a model as `rhymed run` does, shows the progress, and returns the finished run.

    config: a TOML file's name, a dict of sections, or a `Config`; None: the defaults.
    model: a folder, a GGUF file, a hub id, or a dict of settings of [model].
    dataset: a list of dicts, a `datasets.Dataset`, a `pandas.DataFrame`, or the name of a file or of a dataset on a
        hub. Objects are written to `inputs/rows.jsonl` in the run's folder.
    eval_dataset: held-out rows in the same forms, or a dict of name -> rows. See `eval.every` and `Run.evaluate`.
    reward: a function with TRL's parameters (completions, **columns -> list of floats) or verl's (data_source,
        solution_str, ground_truth, extra_info -> float), the name of a built-in scorer, `"file.py:function"`, a
        list of these, whose sum is the reward, or a dict of settings of [reward]. A function of a notebook or of
        the script itself is copied to `inputs/` in the run's folder, see docs/python.md.
    tools: functions that the policy may call, as TRL's `tools`: with type hints and a docstring that describes each
        argument; or `"file.py:a,b"`. See docs/agents.md.
    environment_factory: a class of environments as TRL's, or as SkyRL-Gym's BaseTextEnv; or `"file.py:Class"`.
    resume: a run, or its folder, to continue; `settings` may change what does not belong to its identity.
    progress: False: nothing is printed; else in place in a terminal or a notebook.
    settings: any key of docs/config.md, later than file and environment: `lr=1e-5`, `trainer={"lr": 1e-5}` or
        `**{"trainer.lr": 1e-5}`. A key of another section than trainer, rollout and run needs its section.

    An interrupt (Ctrl-C, or a notebook's stop button) stops all processes, which keeps every stored sample, and
    raises `KeyboardInterrupt`; `rhymed.train(resume="runs/NAME")` continues. Raises `ConfigError`, `DataError`,
    `RewardError` and others of `rhymed.errors` with the sentences of the command line; `RunFailed` where a process
    failed for good.
    """
    asked = Asked(config, model, dataset, eval_dataset, reward, settings, tools, environment_factory)
    job = _prepared(asked, resume)
    display = choose(progress)
    return _judged(job, _started(job, display).follow(display))


async def train_async(
    config: ConfigLike | None = None,
    *,
    model: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    dataset: Rows = None,
    eval_dataset: Rows = None,
    reward: Reward | None = None,
    tools: Sequence[Callable[..., Any]] | str | None = None,
    environment_factory: Callable[..., Any] | str | None = None,
    resume: Run | str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """As `train`, without blocking the event loop. When the task is cancelled, the run is stopped as by an
    interrupt, and can be resumed."""
    asked = Asked(config, model, dataset, eval_dataset, reward, settings, tools, environment_factory)
    job = await in_thread(lambda: _prepared(asked, resume))
    display = choose(progress)
    child = _started(job, display)
    return _judged(job, await in_thread(lambda: child.follow(display), child.interrupt))


def _prepared(asked: Asked, earlier: Run | str | os.PathLike[str] | None) -> Job:
    if earlier is None:
        return start(asked)
    return resume(asked, earlier.folder if isinstance(earlier, Run) else Path(earlier))


def _started(job: Job, display: Display) -> Child:
    if job.renamed:
        display.handle(Line(f"warning  an earlier run has the name: this run is called {job.renamed}"))
    return Child(job.arguments)


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
