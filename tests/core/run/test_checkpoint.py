from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from rhymed.core.errors import HOPELESS, CheckpointError, CheckpointLost, DiskFull
from rhymed.core.run.checkpoint import Checkpoint, damage, digest_of, newest, newest_sealed, resume, save


def writer(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "weights").write_text(text * 1000)
        (folder / "state").write_text(text)

    return write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_found_and_old_ones_go(folder: Path) -> None:
    assert newest(folder) is None
    for step in (2, 4, 10):
        save(folder, step, writer(str(step)), keep=2)
    assert names(folder) == ["step-000004", "step-000010"]
    assert newest(folder) == Checkpoint(10, folder / "step-000010")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["weights", "state", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_one_is_reported_and_the_one_before_used(
    folder: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1, writer("a"), keep=2)
    save(folder, 2, writer("b"), keep=2)
    damage(folder / "step-000002" / name)
    assert newest(folder) == Checkpoint(1, folder / "step-000001")
    assert "step-000002" in caplog.text


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again_by_itself(folder: Path) -> None:
    assert resume(folder) is None
    for step in (1, 2):
        truncate(save(folder, step, writer("a"), keep=2).folder / "weights")
    with pytest.raises(
        CheckpointLost, match=r"is damaged \(step-000001, step-000002\): put a good one back"
    ) as raised:
        resume(folder)
    assert isinstance(raised.value, HOPELESS)
    save(folder, 1, writer("a"), keep=2)
    assert resume(folder) == Checkpoint(1, folder / "step-000001")


def test_a_manifest_of_another_shape_is_damage(folder: Path) -> None:
    for step, text in enumerate(["[]", "7", '{"files": []}', '{"files": {"weights": 3}}', "{}", '"x"', "null"]):
        made = save(folder, step, writer("a"), keep=9).folder
        (made / "manifest.json").write_text(text)
    assert newest(folder) is None


def test_a_crash_while_writing_leaves_the_one_before_and_is_swept_up(folder: Path) -> None:
    save(folder, 1, writer("a"), keep=2)

    def crash(made: Path) -> None:
        writer("b")(made)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(folder, 2, crash, keep=2)
    assert newest(folder) == Checkpoint(1, folder / "step-000001")
    save(folder, 2, writer("b"), keep=2)
    assert names(folder) == ["step-000001", "step-000002"]


def test_writing_a_step_again_repairs_a_damaged_one_and_keeps_a_good_one(folder: Path) -> None:
    made = save(folder, 1, writer("a"), keep=2).folder
    save(folder, 1, writer("b"), keep=2)
    assert (made / "state").read_text() == "a"
    truncate(made / "weights")
    save(folder, 1, writer("b"), keep=2)
    assert (made / "state").read_text() == "b"


def test_no_room_is_an_error_for_the_user(folder: Path) -> None:
    def full(made: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step-000003.*No space left"):
        save(folder, 3, full, keep=1)


NAMES = {"weights": "", "state": ""}
PART = ".writing-step-000003"


def remakes(made: Path) -> None:
    """As `save_pretrained` does, which makes the folder if it is not there."""
    made.mkdir(parents=True, exist_ok=True)
    (made / "weights").write_text("a" * 1000)


def removing(folder: Path, part: str, then: Callable[[Path], None]) -> Callable[[Path], dict[str, str]]:
    """Writes "state", removes `part` when it is called first, and then does `then`."""
    removed = []

    def write(made: Path) -> dict[str, str]:
        (made / "state").write_text("a")
        if not removed:
            removed.append(part)
            found = folder / part
            shutil.rmtree(found) if found.is_dir() else found.unlink()
        then(made)
        return NAMES

    return write


@pytest.mark.parametrize("part", ["", PART, f"{PART}/state"])
@pytest.mark.parametrize("then", [writer("a"), remakes])
def test_what_was_removed_while_it_was_written_is_written_again(
    folder: Path, part: str, then: Callable[[Path], None]
) -> None:
    """A run that ended here could not be continued: no checkpoint was left, and its log-probs were forgotten."""
    save(folder, 3, removing(folder, part, then), keep=1)
    made = folder / "step-000003"
    assert names(folder) == ["step-000003"]
    assert names(made) == ["manifest.json", "state", "weights"]
    assert not damage(made)


def test_a_folder_that_was_made_again_is_no_whole_checkpoint_whatever_is_known_of_it(folder: Path) -> None:
    """An inode number may be given again at once."""
    write = removing(folder, PART, remakes)
    save(folder, 3, lambda made: write(made) and None, keep=1)
    assert names(folder / "step-000003") == ["manifest.json", "state", "weights"]


@pytest.mark.parametrize("renamed", [False, True])
def test_what_is_removed_after_it_was_sealed_is_written_again_and_nothing_is_pruned_before(
    folder: Path, renamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, 1, writer("a"), keep=1)
    rename, lost = Path.rename, []

    def remove(part: Path, target: Path) -> Path:
        moved = rename(part, target) if renamed else part
        assert names(folder)[:1] != ["step-000003"], "the one before is still there"
        if not lost:
            lost.append(part)
            (moved / "weights").unlink()
        return moved if renamed else rename(part, target)

    def write(made: Path) -> None:
        assert newest_sealed(folder) == Checkpoint(1, folder / "step-000001"), (
            "nobody takes the other for a whole one"
        )
        writer("b")(made)

    monkeypatch.setattr(Path, "rename", remove)
    save(folder, 3, write, keep=1)
    assert (names(folder), damage(folder / "step-000003")) == (["step-000003"], "")


def test_what_others_sweep_up_at_the_same_time_is_swept_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = folder / ".writing-step-000002"
    left.mkdir(parents=True)
    rmtree, met = shutil.rmtree, []

    def gone(path: Path, **more: bool) -> None:
        rmtree(path, **more)
        if not met:
            met.append(path)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "weights")

    monkeypatch.setattr(shutil, "rmtree", gone)
    save(folder, 3, writer("a"), keep=1)
    assert (met, names(folder)) == ([left], ["step-000003"])


def test_what_is_removed_again_and_again_is_an_error_and_the_one_before_stays(folder: Path) -> None:
    save(folder, 1, writer("a"), keep=1)

    def write(made: Path) -> None:
        shutil.rmtree(made)

    with pytest.raises(CheckpointError, match=r"step-000003.*removed.*let nothing else remove"):
        save(folder, 3, write, keep=1)
    assert names(folder) == ["step-000001"]


@pytest.mark.parametrize(("number", "kind", "times"), [(2, CheckpointError, 2), (28, DiskFull, 1)])
def test_errors_of_safetensors_are_judged_by_the_systems_number(
    folder: Path, number: int, kind: type[Exception], times: int
) -> None:
    calls = []

    def write(made: Path) -> None:
        calls.append(made)
        raise SafetensorError(f"Error while serializing: I/O error: No such file or directory (os error {number})")

    with pytest.raises(kind):
        save(folder, 3, write, keep=1)
    assert (len(calls), names(folder)) == (times, [])


def test_what_somebody_else_has_judged_is_not_written_again(folder: Path) -> None:
    """One of several ranks cannot: the others would not come."""
    calls = []

    def write(made: Path) -> None:
        calls.append(made)
        raise CheckpointError("cannot be written: No such file or directory (os error 2)")

    with pytest.raises(CheckpointError):
        save(folder, 3, write, keep=1)
    assert (len(calls), names(folder)) == (1, [])


def test_other_things_in_the_folder_are_left_alone(folder: Path) -> None:
    (folder / "notes").mkdir(parents=True)
    save(folder, 1, writer("a"), keep=1)
    shutil.copytree(folder / "step-000001", folder / "step-000001.bak")
    save(folder, 2, writer("b"), keep=1)
    assert names(folder) == ["notes", "step-000001.bak", "step-000002"]


def test_a_sealed_checkpoint_knows_files_in_folders(tmp_path: Path) -> None:
    def write(folder: Path) -> dict[str, str]:
        (folder / "optimizer").mkdir()
        (folder / "optimizer" / "part").write_bytes(b"of another rank")
        (folder / "weights").write_bytes(b"mine")
        return {"optimizer/part": digest_of(folder / "optimizer" / "part")}

    saved = save(tmp_path, 3, write, keep=2)
    assert damage(saved.folder) == ""
    (saved.folder / "optimizer" / "part").write_bytes(b"something else")
    assert "optimizer/part" in damage(saved.folder)
    (saved.folder / "optimizer" / "part").unlink()
    assert damage(saved.folder)
