"""A checkpoint on shared storage counts when all of it is there, whatever fails on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rhymed.core.errors import StorageError
from rhymed.core.run import checkpoint
from rhymed.core.run.checkpoint import Checkpoint
from rhymed.records.remote.checkpoints import Checkpoints, name_of, stage, unstage
from tests.packages import needs

pytestmark = needs("fsspec")


def save(folder: Path, step: int, word: str) -> Checkpoint:
    def write(made: Path) -> None:
        (made / "part").mkdir()
        for name in ("weights", "part/optimizer"):
            (made / name).write_text(f"{word} {name}" * 10)

    return checkpoint.save(folder, step, write, keep=9, run="a")


def content(one: Checkpoint) -> dict[str, bytes]:
    return {str(file.relative_to(one.folder)): file.read_bytes() for file in one.folder.rglob("*") if file.is_file()}


def test_at_every_failure_the_old_checkpoint_or_the_new_one_is_there_whole(tmp_path: Path) -> None:
    from tests.records.remote.storage import failing

    old, new = save(tmp_path / "local", 10, "old"), save(tmp_path / "local", 20, "new")
    fail_at, failures = 0, 0
    while True:
        fail_at += 1
        files, place = failing()
        there = Checkpoints(place)
        there.upload(old)
        files.done, files.fail_at = 0, fail_at
        why = ""
        try:
            there.upload(new)
            there.prune({20}, name_of(new))
        except StorageError as error:
            why = str(error)
        files.fail_at = 0
        assert {one.step for one in there.uploaded()} in ({10}, {10, 20}, {20})
        for one in there.uploaded():
            target = tmp_path / f"{fail_at}"
            assert content(there.download(one, target)) == content(old if one.step == 10 else new)
        if not why:
            break
        assert "failing://bucket/runs/one/checkpoints" in why
        failures += 1
        there.upload(new)  # tried again
        there.prune({20}, name_of(new))
        assert [one.name for one in there.uploaded()] == [name_of(new)] == Checkpoints(place)._place.names()
    assert failures >= 10


def test_a_step_that_was_trained_again_to_other_weights_replaces_the_first(tmp_path: Path) -> None:
    from tests.records.remote.storage import failing

    first, second = save(tmp_path / "one", 10, "first"), save(tmp_path / "two", 10, "second")
    _, place = failing()
    there = Checkpoints(place)
    there.upload(first)
    there.upload(second)
    assert len(there.uploaded()) == 2
    there.prune({10}, name_of(second))
    (left,) = there.uploaded()
    assert content(there.download(left, tmp_path / "back")) == content(second)


def test_damage_and_files_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    from tests.records.remote.storage import failing

    one = save(tmp_path / "local", 10, "old")
    files, place = failing()
    there = Checkpoints(place)
    found = there.upload(one)
    weights = f"/bucket/runs/one/checkpoints/{found.name}/weights"
    good = files.cat_file(weights)
    files.pipe_file(weights, b"x" * len(good))
    with pytest.raises(StorageError, match="is damaged: weights is not what was written"):
        there.download(found, tmp_path / "back")
    manifest = f"/bucket/runs/one/checkpoints/{found.name}/manifest.json"
    files.pipe_file(manifest, json.dumps({"files": {"../../outside": "0"}}).encode())
    with pytest.raises(StorageError, match="a file outside of it"):
        there.download(found, tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir() if path.name != "local"] == ["back"]


def test_a_checkpoint_that_is_being_uploaded_outlives_its_removal(tmp_path: Path) -> None:
    one = save(tmp_path, 10, "old")
    before, staged = content(one), stage(one)
    save(tmp_path, 20, "new")
    checkpoint._prune(tmp_path, 20, 1)
    assert not one.folder.exists()
    assert content(staged) == before
    assert [found.step for found in checkpoint.checkpoints_in(tmp_path)] == [20]
    unstage(tmp_path)
    assert not staged.folder.exists()
