"""Whether a run that is to be resumed has nothing left to do. Reads its folder; starts nothing."""

from __future__ import annotations

from rhymed.config import Config
from rhymed.history.compare.planned import Planned, planned
from rhymed.run import checkpoint, timeline
from rhymed.run.folder import read_evaluations
from rhymed.run.layout import RunLayout


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
