"""MLflow: one MLflow run per run, found again by a tag after restarts.

Destination: `metrics.mlflow`, else MLFLOW_TRACKING_URI, else `mlflow.db` in the folder of the runs. The row's time is
the timestamp, so a row that is sent twice is one point; of a step that is trained again, MLflow shows the later
value. Parameters are written once, when the MLflow run is created: MLflow refuses changes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from rhymed_broker.telemetry import MetricsRow, RunDescription, SampleRow

TAG = "rhymed.id"
PARAMETER_CHARACTERS = 500  # limit of the oldest servers
PARAMETERS_PER_CALL = 100  # likewise


class Mlflow:
    def __init__(self, run: RunDescription) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        local = f"sqlite:///{run.folder.parent / 'mlflow.db'}"
        uri = run.settings.mlflow or os.environ.get("MLFLOW_TRACKING_URI") or local
        self._client: Any = MlflowClient(tracking_uri=uri)
        project = run.settings.project
        experiment = self._client.get_experiment_by_name(project)
        artifacts = (run.folder.parent / "mlartifacts").as_uri() if uri == local else None
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project, artifacts)
        runs = self._client.search_runs([experiment_id], f"tags.`{TAG}` = '{run.id}'", max_results=1)
        self._id = runs[0].info.run_id if runs else self._create(experiment_id, run)
        self._client.set_terminated(self._id, "RUNNING")

    def _create(self, experiment: str, run: RunDescription) -> str:
        from mlflow.entities import Param

        params = [
            Param(f"{section}.{key}", _text(value))
            for section, keys in run.config.items()
            for key, value in keys.items()
        ]
        created = self._client.create_run(experiment, run_name=run.name)
        for start in range(0, len(params), PARAMETERS_PER_CALL):
            self._client.log_batch(created.info.run_id, params=params[start : start + PARAMETERS_PER_CALL])
        self._client.set_tag(created.info.run_id, TAG, run.id)  # last: a run without it is incomplete
        return str(created.info.run_id)

    def write(self, row: MetricsRow) -> None:
        at = int(1000 * row.time)
        metrics = [self._metric(metric_name(name), value, at, row.step) for name, value in row.metrics.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        """A file per step, in the layout of MLflow's tables. `log_table` would append to a step that is sent twice,
        and collects the names of all files in one tag, whose length is limited."""
        table = {"columns": SampleRow._fields, "data": rows}
        self._client.log_dict(self._id, table, f"samples/step-{step:06d}.json")

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def metric_name(name: str) -> str:
    """In the letters that MLflow allows: `val/gsm8k/acc/mean@4` becomes `val/gsm8k/acc/mean_at_4`."""
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:PARAMETER_CHARACTERS]


open_sink = Mlflow
