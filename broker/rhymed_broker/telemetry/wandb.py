"""Weights & Biases: one W&B run per run, also after restarts.

Every row of metrics is a row of its history with `step` as a column, which is the x axis of charts. W&B's own step
counter is not used: it only grows, so a step that is trained again would be refused. The key comes from `wandb login`
or WANDB_API_KEY; without a network, `metrics.offline` writes files to the run's folder for `wandb sync`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rhymed_broker.telemetry import MetricsRow, RunDescription, SampleRow


class Wandb:
    def __init__(self, run: RunDescription) -> None:
        import wandb

        settings = run.settings
        self._run: Any = wandb.init(
            project=settings.project,
            entity=settings.entity or None,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            allow_val_change=True,  # keys may change when the run is resumed
            mode="offline" if settings.offline else None,
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, row: MetricsRow) -> None:
        self._run.log({"step": row.step, **row.metrics})

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        import wandb

        table = wandb.Table(columns=list(SampleRow._fields), data=list(map(list, rows)))
        self._run.log({"step": step, "samples": table})

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


open_sink = Wandb
