"""Whether a run that is to be resumed has nothing left to do. Reads its folder; starts nothing."""

from __future__ import annotations

from rhymed.config import Config
from rhymed.errors import RunMismatch
from rhymed.history.compare.planned import Planned, planned
from rhymed.run import checkpoint, timeline
from rhymed.run.folder import read_evaluations, read_metrics
from rhymed.run.layout import RunLayout
from rhymed.text import counted


def refuse_fewer(earlier: Config, config: Config, layout: RunLayout) -> None:
    """Raises `RunMismatch` if they have fewer steps than are trained, and the errors of `finished`."""
    before, now = earlier.trainer, config.trainer
    if (before.steps, before.epochs) == (now.steps, now.epochs):
        return
    found = checkpoint.checkpoints_in(layout.checkpoints)
    rows = read_metrics(layout)
    trained = max(found[-1].step if found else 0, int(rows[-1]["step"]) + 1 if rows else 0)
    if trained == 0 or (steps := planned(config, layout.folder, 0).steps) >= trained:
        return
    cause = f"trainer.epochs = {now.epochs}" if now.steps == before.steps else f"trainer.steps = {now.steps}"
    raise RunMismatch(
        f"{cause} is a run of {counted(steps, 'step')}, and {layout.folder} has trained {trained} already: give it at"
        " least as many, or start a new run"
    )


def finished(config: Config, layout: RunLayout) -> str:
    """What is done, and how to train further; empty: the run can be resumed. Blocking: verifies the last checkpoint.

    Raises `ConfigError` or `DataError` if the dataset, from which the number of steps follows, cannot be read.
    """
    if not timeline.read(layout.folder).finished:
        return ""
    evaluated = _evaluated(config, layout)
    if config.trainer.steps == 0:
        return "finished: the model is evaluated, see eval.json" if evaluated == 0 else ""
    plan = planned(config, layout.folder, 0)
    newest = checkpoint.newest(layout.checkpoints)
    if newest is None or newest.step < plan.steps or (config.eval.datasets and evaluated < plan.steps):
        return ""
    further = f"rhymed run --resume {layout.folder} {_more(config, plan)}"
    return f"finished: all {plan.steps} steps are trained; to train further: {further}"


def _evaluated(config: Config, layout: RunLayout) -> int:
    """The newest policy version of which every dataset was evaluated; -1: none."""
    keys = [f"val/{data.name}/prompts" for data in config.eval.datasets]
    return max((row["step"] for row in read_evaluations(layout) if all(key in row for key in keys)), default=-1)


def _more(config: Config, plan: Planned) -> str:
    """Options for twice as much training."""
    steps, epochs = config.trainer.steps, config.trainer.epochs
    if steps is None:
        return f"-o trainer.epochs={2 * epochs}"
    enough = 2 * steps <= epochs * plan.size // plan.prompts_per_step
    return f"-o trainer.steps={2 * steps}" + ("" if enough else f" -o trainer.epochs={2 * epochs}")
