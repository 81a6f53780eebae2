"""Which head writes a copy: of a new run, after a sleep, of a machine that may be gone, and at the end of a run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, FilesLost
from rhymed.core.run import folder as runs
from rhymed.core.run import lease as leases
from rhymed.core.run import timeline
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.lease import Lease
from rhymed.core.run.state import read
from rhymed.core.run.timeline import Event
from rhymed.records.remote import head, uploader
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.checkpoints import Checkpoints
from rhymed.records.remote.place import LEASE, Place, open_place
from rhymed.records.remote.uploader import Copier, Keep, Uploader
from tests.packages import needs
from tests.records.remote.folders import Run
from tests.records.remote.test_checkpoints import save

pytestmark = needs("fsspec")
DEADLINE_S = 120.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST_PAUSE_S", 0.05), ("LOOK_S", 0.05), ("WAIT_S", 0.05), ("NICENESS", 0)):
        monkeypatch.setattr(uploader, name, value)
    monkeypatch.setattr(head, "RENEW_S", 0.05)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "shared").mkdir()
    return open_place(str(tmp_path / "shared")).child("one")


def begun(machine: Path) -> tuple[Config, RunLayout]:
    """A run's folder on a machine, without a store."""
    run = {"name": "one", "folder": str(machine), "remote": str(machine.parent / "shared")}
    return runs.create(Config.model_validate({"run": run}))


def other(at: float) -> Lease:
    return msgspec.structs.replace(leases.here("other", "/elsewhere", at), host="gone")


def there(place: Place) -> Lease:
    found = head.found_lease(place)
    assert found is not None
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


def test_a_new_run_does_not_end_another_one_that_has_no_backup_yet(tmp_path: Path, place: Place) -> None:
    first, second = begun(tmp_path / "first"), begun(tmp_path / "second")
    head.refuse_taken(first[0])
    head.claim(*first, take_over=False)
    with pytest.raises(
        ConfigError, match=r"has begun a run here, folder .*first/one, and writes to .*another run.name"
    ):
        head.refuse_taken(second[0])
    head.renew(place, first[1].folder, 1)
    (first[1].folder / head.OWNER).unlink()
    head.refuse_taken(first[0])  # the folder of the same run, which was removed and made again


def test_an_uploader_leaves_the_copy_of_another_run_alone(tmp_path: Path, place: Place) -> None:
    with contextlib.closing(Run(tmp_path / "first", str(tmp_path / "shared"))) as earlier:
        earlier.train()
        earlier.save()
        earlier.copier(place, every=1).look(1)
        head.release(place, earlier.layout.folder, 1)
    before = Backups(place).all(), Checkpoints(place).uploaded()
    _, layout = begun(tmp_path / "second")
    save(layout.checkpoints, 2, "others")
    assert "has the copy of another run" in head.take(place, layout, take_over=True)
    assert (Backups(place).all(), Checkpoints(place).uploaded()) == before
    place.remove_folder("backups")
    (layout.folder / head.OWNER).unlink()
    assert "has checkpoints of an earlier run" in head.take(place, layout, take_over=True)


def test_a_head_that_was_asleep_changes_nothing_of_the_copy_that_another_has(tmp_path: Path, place: Place) -> None:
    config, layout = begun(tmp_path / "first")
    head.claim(config, layout, take_over=False)
    copies = Copier(place, layout, Keep(1, 1, 1), lambda: head.check(place, layout.folder))
    copies.start()
    save(layout.checkpoints, 1, "first")
    copies.look(1)
    place.write(LEASE, leases.encode(other(time.time())))
    save(layout.checkpoints, 2, "asleep")
    with pytest.raises(FilesLost, match=r"the head on gone .* has taken over"):
        copies.look(2)
    assert [one.step for one in Checkpoints(place).uploaded()] == [1]


async def test_an_uploader_waits_until_it_is_certain_that_the_other_head_is_gone(
    tmp_path: Path, place: Place, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, layout = begun(tmp_path / "first")
    save(layout.checkpoints, 1, "first")
    gone = other(time.time())
    place.write(LEASE, leases.encode(gone))
    service = Uploader(config, layout, take_over=True)
    async with service.running():
        await until(lambda: (seen := read(layout.folder)) and "waits for the lease of gone" in seen.trouble)
        assert (there(place), Checkpoints(place).uploaded()) == (gone, [])
        monkeypatch.setattr(head, "STALE_S", 0.0)
        await until(lambda: Checkpoints(place).uploaded())
        assert there(place).folder == str(layout.folder)


async def test_an_uploader_ends_when_the_other_head_turns_out_to_be_alive(
    tmp_path: Path, place: Place, quick: None
) -> None:
    config, layout = begun(tmp_path / "first")
    place.write(LEASE, leases.encode(other(time.time())))
    service = Uploader(config, layout, take_over=True)
    ended = asyncio.create_task(service.run())
    await until(lambda: read(layout.folder))
    place.write(LEASE, leases.encode(other(time.time() + 1)))
    with pytest.raises(FilesLost, match="another head has this run"):
        async with asyncio.timeout(DEADLINE_S):
            await ended
    seen = read(layout.folder)
    assert seen is not None
    assert "another head has this run" in seen.trouble, "the broker shows it"


async def test_an_uploader_that_stays_gives_the_run_back_at_its_end_and_takes_it_when_it_continues(
    tmp_path: Path, place: Place, quick: None
) -> None:
    config, layout = begun(tmp_path / "first")
    events = timeline.Writer(layout.folder)
    events.write([Event(t=1.0, event="begun", step=0)])
    async with Uploader(config, layout, stays=True).running():
        await until(lambda: head.found_lease(place) is not None)
        save(layout.checkpoints, 3, "last")
        (layout.folder / "report.html").write_text("report")
        assert place.read("report.html") is None
        events.write([Event(t=2.0, event="finished", text="all steps are trained")])
        await until(lambda: there(place).released)
        assert [one.step for one in Checkpoints(place).uploaded()] == [3]
        assert place.read("report.html") == b"report"
        events.write([Event(t=3.0, event="begun", step=3)])
        await until(lambda: not there(place).released)
    events.close()


def test_a_renewal_that_began_before_the_end_does_not_undo_the_release(
    tmp_path: Path, place: Place, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, layout = begun(tmp_path / "first")
    events = timeline.Writer(layout.folder)
    save(layout.checkpoints, 3, "last")
    events.write([Event(t=2.0, event="finished", text="all steps are trained")])
    made, renew = Uploader(config, layout, stays=True), head.renew
    assert made._take()
    began, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        if not began.is_set():
            began.set()
            goes_on.wait(DEADLINE_S)
        renew(*arguments)

    monkeypatch.setattr(head, "renew", slow)
    renewing, ending = threading.Thread(target=made._renew), threading.Thread(target=made._look)
    renewing.start()
    assert began.wait(DEADLINE_S)
    ending.start()
    ending.join(0.3)  # time for the fault
    goes_on.set()
    renewing.join()
    ending.join()
    assert there(place).released
    events.close()


async def test_an_uploader_that_stays_says_once_that_another_head_has_the_copy_and_waits_for_it(
    tmp_path: Path, place: Place, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    config, layout = begun(tmp_path / "first")

    def trouble() -> str:
        return seen.trouble if (seen := read(layout.folder)) else ""

    def said() -> int:
        return sum("waiting until this copy may be had" in record.getMessage() for record in caplog.records)

    place.write(LEASE, leases.encode(other(time.time())))
    save(layout.checkpoints, 1, "first")
    async with Uploader(config, layout, stays=True).running():
        await until(lambda: "another head has this run" in trouble())
        place.write(LEASE, leases.encode(other(time.time() - 60)))
        await until(lambda: "last seen 1m" in trouble())
        assert (said(), Checkpoints(place).uploaded()) == (1, [])
        place.write(LEASE, leases.encode(msgspec.structs.replace(other(time.time()), released=True)))
        await until(lambda: Checkpoints(place).uploaded() and not trouble())
        assert there(place).folder == str(layout.folder)
        place.write(LEASE, leases.encode(other(time.time())))
        await until(lambda: "the copy of this run is not kept up, and the run continues" in trouble())
        save(layout.checkpoints, 2, "not written")
        place.write(LEASE, leases.encode(other(time.time() - 120)))
        await until(lambda: "last seen 2m" in trouble())
        assert [one.step for one in Checkpoints(place).uploaded()] == [1]
        assert said() == 2
