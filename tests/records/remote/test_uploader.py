"""The uploader reports storage that fails, catches up when it works again, and ends for one reason alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rhymed.core.errors import FilesLost
from rhymed.core.run import lease as leases
from rhymed.core.run.state import SILENT_S, RemoteTrouble, Status, note, read
from rhymed.records.remote import head, uploader
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.place import LEASE, open_place
from rhymed.records.remote.uploader import Uploader, finish
from tests.packages import needs
from tests.records.remote.folders import Run

pytestmark = needs("fsspec")
DEADLINE_S = 120.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.05)


def test_what_the_broker_shows_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = RemoteTrouble(tmp_path, "s3://bucket/runs")
    assert trouble.trouble == "", "it has not written anything yet"
    now = time.time()
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: now + SILENT_S + 5)
        assert "the uploader of run.remote has been silent for 60" in trouble.trouble, "none was started"
    note(tmp_path, Status(at=time.time(), trouble="no answer"))
    assert trouble.trouble == "no answer"
    assert RemoteTrouble(tmp_path, "").trouble == ""
    note(tmp_path, Status(at=time.time()))
    assert trouble.trouble == ""
    note(tmp_path, Status(at=time.time() - SILENT_S - 5))
    assert "the uploader of run.remote has been silent for 60" in trouble.trouble
    note(tmp_path, Status(at=0.0, trouble="no answer", ended=True))
    assert trouble.trouble == ""
    (tmp_path / "remote.json").write_text("{")
    assert trouble.trouble == ""


@pytest.mark.thorough
async def test_storage_that_is_gone_is_reported_and_what_was_missed_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FIRST_PAUSE_S", 0.05), ("LONGEST_PAUSE_S", 0.1), ("LOOK_S", 0.05), ("NICENESS", 0)):
        monkeypatch.setattr(uploader, name, value)
    monkeypatch.setattr(head, "RENEW_S", 0.05)
    shared, away = tmp_path / "shared", tmp_path / "away"
    shared.mkdir()
    with contextlib.closing(Run(tmp_path / "first", str(shared))) as run:
        head.claim(run.config, run.layout, take_over=False)
        shared.rename(away)
        trouble = RemoteTrouble(run.layout.folder, str(shared))
        for _ in range(6):
            run.train()
        run.save()
        service = Uploader(run.config, run.layout)
        async with service.running():
            await until(lambda: trouble.trouble)
            assert "the copy of this run is not kept up, and the run continues" in trouble.trouble
            assert "is it mounted?" in trouble.trouble
            away.rename(shared)
            await until(lambda: not trouble.trouble and (status := read(run.layout.folder)) and status.backup == 6)
        said = finish(run.config, run.layout)
        assert "as of 6 trained steps; on any machine: rhymed run --resume file://" in said
        place = open_place(str(shared)).child("one")
        assert [backup.steps for backup in Backups(place).all()][-1] == 6

        service = Uploader(run.config, run.layout)
        working = asyncio.create_task(service.run())
        await until(service._taken.is_set)
        place.write(LEASE, leases.encode(leases.here("other", "/elsewhere", time.time())))
        with pytest.raises(FilesLost, match="has taken over this run"):
            async with asyncio.timeout(DEADLINE_S):
                await working
