"""A run's folder with a real store that grows by steps, and its copy on shared storage."""

from __future__ import annotations

from pathlib import Path

from rhymed.core.config import Config
from rhymed.core.messages import ForgetLogprobs, MarkSamples, OpenRun
from rhymed.core.run import checkpoint
from rhymed.core.run import folder as runs
from rhymed.core.run.layout import ids_of
from rhymed.records.remote.place import Place
from rhymed.records.remote.uploader import Copier
from tests.store.stores import LocalStore, new_sample


def keeping(checkpoints: int, backups: int, every: int) -> Config:
    """So many of each, and a backup after so many steps."""
    store = {"keep_backups": backups, "backup_every": every}
    return Config.model_validate({"trainer": {"keep_checkpoints": checkpoints}, "store": store})


class Run:
    """Trains steps of a few samples each. `keep`: checkpoints in its own folder."""

    def __init__(self, folder: Path, remote: str, keep: int = 1) -> None:
        settings = {"run": {"name": "one", "folder": str(folder), "remote": remote}, "store": {"map_gib": 0.25}}
        self.config, self.layout = runs.create(Config.model_validate(settings))
        self.id, self.keep, self.steps, self.closed = ids_of(self.layout.folder)[-1], keep, 0, False
        self.local = LocalStore(self.layout.database, 256 << 20)
        self.local.do(lambda b: self.local.writes.open_run(b, OpenRun(run="one", fingerprint="{}", id=self.id)))

    def train(self, *, length: int = 400) -> None:
        samples = [new_sample(self.steps, index, length=length) for index in range(8)]
        self.local.put(*samples)
        mark = MarkSamples(samples=[sample.info.id for sample in samples], state="trained")
        self.local.do(lambda b: self.local.writes.mark(b, mark))
        self.steps += 1

    def save(self) -> None:
        """A checkpoint; then log-probs below the oldest one that is kept are deleted, as the broker does it."""
        step, text = self.steps, f"weights {self.steps}"
        checkpoint.save(
            self.layout.checkpoints, step, lambda made: (made / "w").write_text(text) and None, self.keep, self.id
        )
        forget = ForgetLogprobs(below_step=checkpoint.checkpoints_in(self.layout.checkpoints)[0].step)
        self.local.do(lambda b: self.local.writes.forget_logprobs(b, forget))

    def copier(self, place: Place, every: int = 2, backups: int = 2) -> Copier:
        made = Copier(place, self.layout, keeping(self.keep, backups, every))
        made.start()
        return made

    def close(self) -> None:
        """Idempotent."""
        if not self.closed:
            self.local.database.close()
        self.closed = True
