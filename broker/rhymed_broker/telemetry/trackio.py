"""trackio: one trackio run per run, in its local database or in a Hugging Face Space.

trackio identifies a run by its name, so the name contains a part of the id. `trackio show` shows the local runs,
which are stored in TRACKIO_DIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rhymed_broker.telemetry import MetricsRow, RunDescription, SampleRow


class Trackio:
    def __init__(self, run: RunDescription) -> None:
        import trackio

        settings = run.settings
        self._run: Any = trackio.init(
            project=settings.project,
            name=f"{run.name}-{run.id[:6]}",
            space_id=settings.space or None,
            config=dict(run.config),
            resume="allow",
            embed=False,
        )

    def write(self, row: MetricsRow) -> None:
        self._run.log(dict(row.metrics), step=row.step)

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        import pandas
        import trackio

        self._run.log({"samples": trackio.Table(dataframe=pandas.DataFrame(rows))}, step=step)

    def close(self, *, finished: bool) -> None:
        self._run.finish()


open_sink = Trackio
