"""Which checkpoint is uploaded, without a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of
from rhymed.records.remote import uploader
from rhymed.records.remote.checkpoints import Checkpoints
from rhymed.records.remote.uploader import Copier
from tests.packages import needs
from tests.records.remote.folders import keeping
from tests.records.remote.test_checkpoints import save

pytestmark = needs("fsspec")


def test_a_damaged_checkpoint_is_read_once_and_the_one_before_is_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.records.remote.storage import failing

    layout = layout_of(Config.model_validate({"run": {"name": "one", "folder": str(tmp_path)}}))
    files, place = failing()
    good, bad = save(layout.checkpoints, 10, "good"), save(layout.checkpoints, 20, "bad")
    (bad.folder / "weights").write_text("damaged")
    read: list[str] = []

    def damage(folder: Path) -> str:
        read.append(folder.name.rpartition("-")[2])
        return real(folder)

    real = uploader.damage
    monkeypatch.setattr(uploader, "damage", damage)
    copies = Copier(place, layout, keeping(2, 2, 5))
    copies.start()
    for _ in range(3):
        copies.look(0)
    assert [one.step for one in Checkpoints(place).uploaded()] == [good.step]
    assert read == ["000020", "000010"]
    assert not list(layout.checkpoints.glob(".*")), "no second name of a checkpoint is left"

    save(layout.checkpoints, 30, "next")
    copies.look(0)
    assert [one.step for one in Checkpoints(place).uploaded()] == [10, 30]
    before = files.done
    copies.look(0)
    assert files.done == before, "a look at what is there already asks the storage for nothing"
    assert read == ["000020", "000010", "000030"]
