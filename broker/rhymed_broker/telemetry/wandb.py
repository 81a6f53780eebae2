"""Weights & Biases: one run there for a run here, whatever happens to its processes.

Every line is a row of its history with `step` as one of its columns, and charts have that as their x axis. W&B's own
counter of rows is left alone: it only grows, so a step that is trained again would be refused. Keys come from `wandb
login` or WANDB_API_KEY; without network, `metrics.offline` leaves files in the run's folder for `wandb sync`.
"""

from __future__ import annotations

from typing import Any

from rhymed_broker.telemetry import About, Line


class Wandb:
    def __init__(self, about: About) -> None:
        import wandb

        settings = about.settings
        self._run: Any = wandb.init(
            project=settings["project"],
            entity=settings["entity"] or None,
            name=about.name,
            id=about.id,
            resume="allow",
            dir=str(about.folder),
            config=dict(about.config),
            allow_val_change=True,  # of keys that another part of the run may set otherwise
            mode="offline" if settings["offline"] else None,
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, line: Line) -> None:
        self._run.log({"step": line.step, **line.metrics})

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def open_sink(about: About) -> Wandb:
    return Wandb(about)
