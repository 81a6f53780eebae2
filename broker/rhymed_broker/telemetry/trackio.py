"""trackio: one run there for a run here, in its local database or in a Hugging Face Space.

A run is found again there by its name, so that has a part of our id. `trackio show` shows the local ones, which lie
where TRACKIO_DIR says.
"""

from __future__ import annotations

from typing import Any

from rhymed_broker.telemetry import About, Line


class Trackio:
    def __init__(self, about: About) -> None:
        import trackio

        settings = about.settings
        self._run: Any = trackio.init(
            project=settings["project"],
            name=f"{about.name}-{about.id[:6]}",
            space_id=settings["space"] or None,
            config=dict(about.config),
            resume="allow",
            embed=False,
        )

    def write(self, line: Line) -> None:
        self._run.log(dict(line.metrics), step=line.step)

    def close(self, *, finished: bool) -> None:
        self._run.finish()


def open_sink(about: About) -> Trackio:
    return Trackio(about)
