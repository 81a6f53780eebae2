"""A rollout worker with the trace engine that writes down when each of its slots is taken and freed.

Lines of the file: what ("asked", "taken", "freed"), sample, tokens before the turn, time (monotonic). A turn is asked
for when the worker has read what comes before it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed.core.run.layout import layout_of
from rhymed.core.service.process import serve
from rhymed_workers.engines.base import Output, Task
from rhymed_workers.engines.trace import TraceEngine
from rhymed_workers.rollout.worker import RolloutWorker


class Slots(dict[SampleId, Any]):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self._stream = file.open("w", buffering=1)

    def note(self, what: str, task: Task) -> None:
        print(what, task.id, len(task.prefix or ()), f"{time.monotonic():.6f}", file=self._stream)

    def __setitem__(self, id: SampleId, running: Any) -> None:
        self.note("taken", running.task)
        super().__setitem__(id, running)

    def __delitem__(self, id: SampleId) -> None:
        self.note("freed", self[id].task)
        super().__delitem__(id)


class WatchedEngine(TraceEngine):
    def __init__(self, config: Config, file: Path) -> None:
        super().__init__(config.trace, config.rollout)
        self._running = self._slots = Slots(file)

    async def generate(self, task: Task) -> Output:
        self._slots.note("asked", task)
        return await super().generate(task)


def main(file: Path, name: str) -> None:
    config = Config.model_validate_json(file.read_text())
    layout = layout_of(config)
    engine = WatchedEngine(config, layout.folder / f"{name}.slots")
    serve(lambda: RolloutWorker(config, layout, name, engine), log_file=layout.log(name), level="warning")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
