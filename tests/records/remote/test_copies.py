"""Backups of a real store: only what is new is written, every whole one is restored, and a failure costs nothing."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from rhymed.core import atomic
from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError, FilesLost, RhymedError, StorageError
from rhymed.core.run.folder import hold
from rhymed.core.run.layout import layout_of
from rhymed.records.remote import head
from rhymed.records.remote.backups import Backups
from rhymed.records.remote.checkpoints import Checkpoints
from rhymed.records.remote.place import Place, fitting, open_place
from rhymed.records.remote.restore import render, restore
from rhymed.start.cli import main
from rhymed.start.launch import resumable
from tests.packages import needs
from tests.records.remote.folders import Run
from tests.store.damage import content

pytestmark = [needs("fsspec"), pytest.mark.thorough]


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def run(tmp_path: Path, remote: Path):
    made = Run(tmp_path / "first", str(remote))
    with contextlib.closing(made):
        yield made


def chunks_of(place: Place) -> set[str]:
    chunks = place.child("chunks")
    return {name for folder in chunks.names() for name in chunks.child(folder).names()}


def test_what_is_new_is_written_and_the_newest_is_restored(
    run: Run, remote: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = open_place(str(remote)).child("one")
    (run.layout.folder / "model-runner").write_text("v2\n")  # an engine's; a resume elsewhere has to take the same
    copies = run.copier(place)
    for _ in range(8):
        run.train(length=40_000)
    run.save()
    copies.look(run.steps)
    run.train()
    copies.look(run.steps)
    assert [backup.steps for backup in Backups(place).all()] == [8], "the next one is due after two steps"
    run.train()
    before = chunks_of(place)
    copies.look(run.steps)
    first, second = Backups(place).all()
    assert len(chunks_of(place) - before) < len(before) / 2
    assert chunks_of(place) == first.chunks | second.chunks
    assert second.bytes > 2 << 20

    restored = restore(f"{remote}/one", tmp_path / "second")
    assert (restored.checkpoint, restored.backup.steps, restored.newest) == (8, 10, True)
    assert (restored.folder / "model-runner").read_text() == "v2\n"
    said = render(restored, "URL", restored.backup.at + 90)
    assert "the checkpoint after 8 steps, and the samples of a backup after 10 steps, made 1m30s ago" in said
    assert "steps 9 to 10 are trained again, on the same samples\nlost: samples and steps after step 10" in said
    run.close()  # this process can open it once
    assert content(restored.folder / "store") == content(run.layout.database)
    config = load_run(restored.folder)
    assert layout_of(config).folder == restored.folder
    resumable.check(layout_of(config))
    with pytest.raises(ConfigError, match="exists already: continue it"):
        restore(f"{remote}/one", tmp_path / "second")

    (tmp_path / "copies").mkdir()
    by_hand = f"file://{tmp_path}/copies"
    folder = str(run.layout.folder)
    for _ in range(2):
        assert main(["upload", "--once", folder, "-o", f"run.remote={by_hand}"]) == 0
    assert restore(f"{by_hand}/one", tmp_path / "third").folder == tmp_path / "third" / "one"
    with hold(run.layout):  # it is alive, and its uploader works
        capsys.readouterr()
        assert (
            main(["upload", "--once", folder, "-o", f"run.remote={load_run(Path(folder)).run.remote or by_hand}"])
            == 2
        )
        assert "living run" in capsys.readouterr().err
    assert main(["history", "backup", folder, f"{by_hand}/one"]) == 2
    with pytest.raises(ConfigError, match="name the folder of one run"):
        restore("s3://bucket", tmp_path)


def test_an_older_backup_is_restored_where_the_newest_is_damaged_or_on_request(
    run: Run, remote: Path, tmp_path: Path
) -> None:
    place = open_place(str(remote)).child("one")
    copies = run.copier(place)
    for _ in range(3):
        run.train()
        run.train()
        run.save()
        copies.look(run.steps)
    older, newest = Backups(place).all()
    assert (older.steps, newest.steps) == (4, 6)
    assert chunks_of(place) == older.chunks | newest.chunks
    assert [one.step for one in Checkpoints(place).uploaded()] == [4, 6]
    asked = restore(f"{remote}/one", tmp_path / "asked", steps=5)
    assert (asked.backup.steps, asked.checkpoint, asked.newest) == (4, 4, False)
    assert load_run(asked.folder).run.remote == "", "it must not replace the newer one"
    resumable.check(layout_of(load_run(asked.folder)))
    with pytest.raises(ConfigError, match="no backup of at most 3 steps: there are 4 steps, 6 steps"):
        restore(f"{remote}/one", tmp_path / "none", steps=3)
    for digest in newest.chunks - older.chunks:
        place.child("chunks").write(f"{digest[:2]}/{digest}", b"damaged")
    restored = restore(f"{remote}/one", tmp_path / "second")
    assert (restored.backup.steps, restored.newest) == (4, False)
    for digest in older.chunks:
        place.child("chunks").remove(f"{digest[:2]}/{digest}")
    with pytest.raises(StorageError, match="none of its backups can be restored"):
        restore(f"{remote}/one", tmp_path / "third")
    assert not (tmp_path / "third" / "one").exists()


def test_a_full_disk_of_this_machine_is_a_sentence_and_leaves_nothing(
    run: Run, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train()
    run.save()
    run.copier(open_place(str(remote)).child("one"), every=1).look(1)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(ConfigError, match=r"second/one cannot be written: No space left on device"):
        restore(f"{remote}/one", tmp_path / "second")
    assert not list((tmp_path / "second").iterdir())


def test_at_every_failure_the_newest_whole_backup_is_restored(tmp_path: Path) -> None:
    from tests.records.remote.storage import failing

    files, place = failing()
    with contextlib.closing(Run(tmp_path / "first", "memory://")) as run:
        copies = run.copier(place, every=1)
        run.train()
        run.save()
        copies.look(run.steps)
        written = {0: 1}
        for fail_at in (*range(1, 90, 9), 0):
            run.train()
            run.save()
            files.done, files.fail_at = 0, fail_at
            with contextlib.suppress(RhymedError):
                copies.look(run.steps)
            files.fail_at = 0
            steps = [one.step for one in Checkpoints(place).uploaded()]
            backups = Backups(place).all()
            assert fitting(backups[-1], steps) is not None
            there = chunks_of(place)
            for backup in backups:
                assert backup.chunks <= there
            written[fail_at] = backups[-1].steps
        assert written[0] == run.steps
        assert chunks_of(place) == set.union(*(backup.chunks for backup in Backups(place).all()))
        assert len(set(written.values())) > 3


def test_a_second_head_is_refused_and_the_first_one_ends(run: Run, remote: Path, tmp_path: Path) -> None:
    place = open_place(str(remote)).child("one")
    head.refuse_taken(run.config)
    head.claim(run.config, run.layout, take_over=False)
    run.train()
    run.save()
    run.copier(place, every=1).look(run.steps)
    run.train()
    run.save()
    run.copier(place, every=5).look(run.steps)  # a checkpoint, and no backup yet
    run.copier(place, every=5)  # as another process
    assert [one.step for one in Checkpoints(place).uploaded()] == [1, 2]
    with pytest.raises(ConfigError, match=r"has the copy of an earlier run: choose another run.name"):
        head.refuse_taken(run.config)
    with pytest.raises(ConfigError, match="another head has this run"):
        restore(f"{remote}/one", tmp_path / "second", take_over=True)
    (run.layout.folder / head.OWNER).unlink()
    head.renew(place, run.layout.folder, 1)  # a file that a cleaner removed is no second head
    head.release(place, run.layout.folder, 1)
    moved = restore(f"{remote}/one", tmp_path / "second")
    there = layout_of(load_run(moved.folder))
    head.claim(load_run(moved.folder), there, take_over=False)
    with pytest.raises(FilesLost, match=r"folder .*second/one\) has taken over this run"):
        head.renew(place, run.layout.folder, 2)
    head.release(place, moved.folder, 1)
    run.train()
    run.save()
    run.copier(place, every=1).look(run.steps)
    with pytest.raises(ConfigError, match=r"is ahead of .*: its backup has samples of 3 steps, the folder of 1"):
        head.claim(load_run(moved.folder), there, take_over=False)
