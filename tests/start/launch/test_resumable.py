"""A run is resumed only with a store and checkpoints that belong together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, RunMismatch, StoreDamaged
from rhymed.core.messages import OpenRun
from rhymed.core.run import checkpoint
from rhymed.core.run import folder as runs
from rhymed.core.run.layout import ID, RunLayout, ids_of
from rhymed.start.launch import resumable
from rhymed.start.launch.resumable import Found, disagreement
from rhymed_store.position import Position, position_of
from tests.store.stores import LocalStore, new_sample

FOLDER = Path("/runs/one")


def of(end: int, forgotten: int = 0, id: str = "a", *, claimed: bool = True) -> Position:
    return Position(claimed, id, forgotten, end)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            Found(["a"], True, None, 10, "a"),
            ["store/data.mdb is missing or empty", "checkpoints up to 10 steps"],
        ),
        (Found(["a"], True, None), ["is missing or empty", "or start a new run"]),
        (Found(["a"], True, of(0, id="", claimed=False), 10, "a"), ["is new, no run has used it"]),
        (Found(["a"], True, of(12, 8, "b"), 10, "a"), ["is the store of another run (id b; this run is a)"]),
        (Found(["b", "a"], True, of(12, 8, "b"), 10, "b"), ["is what this run left behind with --without-history"]),
        (
            Found(["a"], True, of(7, 5), 10, "a"),
            ["is older than the checkpoints", "of step 7,", "10 steps"],
        ),
        (Found([], True, of(0, id=""), 10), ["is older than the checkpoints: it has no samples of training"]),
        (
            Found(["a"], True, of(12, 8), 5, "a"),
            ["/runs/one/checkpoints are behind", "first 8 steps"],
        ),
        (Found(["a"], True, of(12, 8)), ["are behind the store: there is none", "or start a new run"]),
        (Found(["a"], True, of(12, 8), 10, "c"), ["was written by another run (id c; this one is a)"]),
    ],
)
def test_what_does_not_belong_together_is_refused_with_the_ways_out(found: Found, words: list[str]) -> None:
    why = disagreement(found, FOLDER)
    assert [word for word in words if word not in why] == [], why
    ways_out = found.steps and "another run (id c" not in why
    assert ("rhymed run --resume /runs/one --without-history" in why) == bool(ways_out)


@pytest.mark.parametrize(
    "found",
    [
        Found(["a"], False, None),  # killed before it had a store
        Found(["a"], True, of(3), 0),  # before its first checkpoint
        Found(["a"], True, of(12, 8), 10, "a"),
        Found(["b", "a"], True, of(12, 8), 10, "b"),  # resumed without history, and killed early
        Found(["a"], True, of(10, 10, claimed=False), 10, ""),  # the same, before its broker opened the store
        Found([], True, of(12, 8, ""), 10),  # an import, whose file of ids is gone
        Found(["a"], True, of(12, 8, ""), 10),  # resumed by this one, and killed at once
    ],
)
def test_what_belongs_together_is_resumed(found: Found) -> None:
    assert disagreement(found, FOLDER) == ""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"run": {"name": "one", "folder": str(tmp_path)}, "store": {"map_gib": 0.05}})


@pytest.fixture
def worked(config: Config) -> RunLayout:
    """A run's folder with samples of three steps and a checkpoint after two."""
    config, layout = runs.create(config)
    id = ids_of(layout.folder)[-1]
    local = LocalStore(layout.database)
    local.do(lambda batch: local.writes.open_run(batch, OpenRun(run="one", fingerprint="{}", id=id)))
    for step in range(3):
        local.put(new_sample(step))
    local.database.close()
    checkpoint.save(layout.checkpoints, 2, lambda made: (made / "weights").write_text("w") and None, 2, id)
    return layout


def test_a_store_of_no_bytes_is_refused_and_left_as_it_is(worked: RunLayout) -> None:
    """What an accident of disk, rsync or power leaves."""
    resumable.check(worked)
    (worked.database / "data.mdb").write_bytes(b"")
    with pytest.raises(RunMismatch, match=r"data\.mdb is missing or empty, but this run has worked"):
        resumable.check(worked)
    assert (worked.database / "data.mdb").stat().st_size == 0
    shutil.rmtree(worked.database)
    with pytest.raises(RunMismatch, match="is missing or empty"):
        resumable.check(worked)
    assert not worked.database.exists()


def test_a_folder_that_is_no_checkpoint_does_not_stop_a_run(worked: RunLayout) -> None:
    (worked.checkpoints / "step-999999").mkdir()
    resumable.check(worked)
    config = Config.model_validate({"trainer": {"steps": 5}, "rollout": {"engine": "trace"}})
    fewer = Config.model_validate({"trainer": {"steps": 3}, "rollout": {"engine": "trace"}})
    resumable.refuse_fewer(config, fewer, worked)


def _put(table: bytes, value: bytes) -> Callable[[Path], None]:
    """Another value for the first key of a table."""

    def damage(file: Path) -> None:
        with lmdb.open(str(file.parent), max_dbs=64) as env, env.begin(write=True) as txn:
            db = env.open_db(table, txn, create=False)
            with txn.cursor(db) as cursor:
                assert cursor.first()
                txn.put(cursor.key(), value, db=db)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: os.truncate(file, 8 << 10), "SIGBUS"),
        (_put(b"journal", b"\xff" * 24), "a line of the journal is damaged at rest"),
        (_put(b"journal", b""), "a line of the journal is damaged at rest"),
        (_put(b"meta", b"\xff"), "is damaged: "),
    ],
)
def test_a_damaged_store_is_refused_with_its_place(worked: RunLayout, damage: Any, words: str) -> None:
    damage(worked.database / "data.mdb")
    with pytest.raises(StoreDamaged, match=words) as refused:
        resumable.check(worked)
    assert str(worked.database) in str(refused.value)
    assert "rhymed history backup" in str(refused.value)
    assert f"rhymed run --resume {worked.folder} --without-history" in str(refused.value)


def test_a_run_whose_id_file_is_gone_takes_the_id_of_its_store(worked: RunLayout, config: Config) -> None:
    ids = ids_of(worked.folder)
    (worked.folder / ID).unlink()
    resumable.check(worked)
    runs.save(config)
    assert ids_of(worked.folder) == ids


def test_another_store_of_the_same_name_and_settings_is_refused(worked: RunLayout, tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "other")
    local.do(lambda batch: local.writes.open_run(batch, OpenRun(run="one", fingerprint="{}", id="of another")))
    with pytest.raises(RunMismatch, match="is the store of another run"):
        local.do(lambda batch: local.writes.open_run(batch, OpenRun(run="one", fingerprint="{}", id="this one")))
    local.database.close()
    shutil.copyfile(tmp_path / "other" / "data.mdb", worked.database / "data.mdb")
    with pytest.raises(RunMismatch, match=r"store of another run \(id of another"):
        resumable.check(worked)


def test_without_history_the_old_store_is_kept_and_the_new_one_begins_at_the_checkpoint(
    worked: RunLayout, config: Config
) -> None:
    first = ids_of(worked.folder)
    said = resumable.without_history(config, worked)
    assert said == f"continuing after 2 steps with an empty history; the old store is {worked.folder}/store.old-1"
    resumable.check(worked)
    assert ids_of(worked.folder)[:-1] == first
    position = position_of(worked.database)
    assert position == Position(False, ids_of(worked.folder)[-1], forgotten=2, end=2)
    old = position_of(worked.folder / "store.old-1")
    assert old is not None
    assert (old.end, old.id) == (3, first[-1])


def test_without_a_checkpoint_there_is_nothing_to_continue_from(worked: RunLayout, config: Config) -> None:
    shutil.rmtree(worked.checkpoints)
    with pytest.raises(ConfigError, match="has no checkpoint to continue from"):
        resumable.without_history(config, worked)
    assert position_of(worked.database) is not None


def test_a_checkpoint_names_its_run(worked: RunLayout) -> None:
    found = checkpoint.checkpoints_in(worked.checkpoints)[-1]
    assert checkpoint.run_of(found.folder) == ids_of(worked.folder)[-1]
    assert checkpoint.damage(found.folder) == ""
    with pytest.raises(RunMismatch, match="was written by another run"):
        checkpoint.resume(worked.checkpoints, ["of another"])
    manifest = json.loads((found.folder / "manifest.json").read_text())
    del manifest["run"]
    (found.folder / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.run_of(found.folder) == ""
