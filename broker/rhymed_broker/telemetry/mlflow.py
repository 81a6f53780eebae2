"""MLflow: one run there for a run here, found again by a tag, whatever happens to its processes.

Where to: `metrics.mlflow`, else MLFLOW_TRACKING_URI, else `mlflow.db` in the folder where runs are made. A line's own
time is its timestamp, so what is sent twice is the same point; of a step that is trained again, MLflow shows the
later one. Parameters are written when the run is made there, and never again: MLflow refuses a change.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from rhymed_broker.telemetry import About, Line

TAG = "rhymed.id"
LONGEST = 500  # characters of a parameter: what the oldest servers take
AT_ONCE = 100  # parameters in one call, likewise


class Mlflow:
    def __init__(self, about: About) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        local = f"sqlite:///{about.folder.parent / 'mlflow.db'}"
        uri = about.settings["mlflow"] or os.environ.get("MLFLOW_TRACKING_URI") or local
        self._client: Any = MlflowClient(tracking_uri=uri)
        project = about.settings["project"]
        experiment = self._client.get_experiment_by_name(project)
        place = (about.folder.parent / "mlartifacts").as_uri() if uri == local else None
        number = experiment.experiment_id if experiment else self._client.create_experiment(project, place)
        found = self._client.search_runs([number], f"tags.`{TAG}` = '{about.id}'", max_results=1)
        self._id = found[0].info.run_id if found else self._create(number, about)
        self._client.set_terminated(self._id, "RUNNING")

    def _create(self, experiment: str, about: About) -> str:
        from mlflow.entities import Param

        params = [Param(key, _text(value)) for key, value in about.flat.items()]
        made = self._client.create_run(experiment, run_name=about.name)
        for start in range(0, len(params), AT_ONCE):
            self._client.log_batch(made.info.run_id, params=params[start : start + AT_ONCE])
        self._client.set_tag(made.info.run_id, TAG, about.id)  # last: a run without it was not begun
        return str(made.info.run_id)

    def write(self, line: Line) -> None:
        at = int(1000 * line.time)
        metrics = [self._metric(metric_name(name), value, at, line.step) for name, value in line.metrics.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def metric_name(name: str) -> str:
    """As MLflow allows it: `val/gsm8k/acc/mean@4` is `val/gsm8k/acc/mean_at_4` there."""
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:LONGEST]


def open_sink(about: About) -> Mlflow:
    return Mlflow(about)
