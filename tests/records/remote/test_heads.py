"""Which head writes a copy: of a new run, after a sleep, of a machine that may be gone, and at the end of a run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, FilesLost
from rhymed.core.run import folder as runs
from rhymed.core.run import lease as leases
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.lease import Lease
from rhymed.core.run.state import read
from rhymed.records.remote import head, uploader
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.checkpoints import Checkpoints
from rhymed.records.remote.place import LEASE, Place, open_place
from rhymed.records.remote.uploader import Copier, Uploader
from tests.packages import needs
from tests.records.remote.folders import Run, keeping
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
    copies = Copier(place, layout, keeping(1, 1, 1), lambda: head.check(place, layout.folder))
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
