"""A run is resumed only with a store and checkpoints that belong together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rhymed.config import Config
from rhymed.errors import ConfigError, RunMismatch
from rhymed.launch import halves
from rhymed.launch.halves import Halves, disagreement
from rhymed.messages import OpenRun
from rhymed.run import checkpoint
from rhymed.run import folder as runs
from rhymed.run.layout import RunLayout
from rhymed_store.position import Position, position_of
from tests.store.stores import LocalStore, new_sample

FOLDER = Path("/runs/one")


def of(end: int, forgotten: int = 0, id: str = "a", *, claimed: bool = True) -> Position:
    return Position(claimed, id, forgotten, end, end)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            Halves(["a"], True, None, 10, "a"),
            ["store/data.mdb is missing or empty", "checkpoints up to 10 steps"],
        ),
        (Halves(["a"], True, None), ["is missing or empty", "or start a new run"]),
        (Halves(["a"], True, of(0, id="", claimed=False), 10, "a"), ["is new, no run has used it"]),
        (Halves(["a"], True, of(12, 8, "b"), 10, "a"), ["is the store of another run (id b; this run is a)"]),
        (Halves(["b", "a"], True, of(12, 8, "b"), 10, "b"), ["is what this run left behind with --without-history"]),
        (
            Halves(["a"], True, of(7, 5), 10, "a"),
            ["is older than the checkpoints", "of step 7,", "10 steps"],
        ),
        (
            Halves(["a"], True, of(7, 5), 10, "a", "store-1", 10),
            [
                "store-1 is older than the run's other stores: it has all samples of 7 steps, they of 10",
                "own store-1/",
            ],
        ),
        (Halves([], True, of(0, id=""), 10), ["is older than the checkpoints: it has no samples of training"]),
        (
            Halves(["a"], True, of(12, 8), 5, "a"),
            ["/runs/one/checkpoints are behind", "first 8 steps"],
        ),
        (Halves(["a"], True, of(12, 8)), ["are behind the store: there is none", "or start a new run"]),
        (Halves(["a"], True, of(12, 8), 10, "c"), ["was written by another run (id c; this one is a)"]),
    ],
)
def test_what_does_not_belong_together_is_refused_with_the_ways_out(found: Halves, words: list[str]) -> None:
    why = disagreement(found, FOLDER)
    assert [word for word in words if word not in why] == [], why
    ways_out = found.steps and "another run (id c" not in why
    assert ("rhymed run --resume /runs/one --without-history" in why) == bool(ways_out)


@pytest.mark.parametrize(
    "found",
    [
        Halves(["a"], False, None),  # killed before it had a store
        Halves(["a"], True, of(3), 0),  # before its first checkpoint
        Halves(["a"], True, of(12, 8), 10, "a"),
        Halves(["b", "a"], True, of(12, 8), 10, "b"),  # resumed without history, and killed early
        Halves(["a"], True, of(10, 10, claimed=False), 10, ""),  # the same, before its broker opened the store
        Halves([], True, of(12, 8, ""), 10),  # of an earlier release
        Halves(["a"], True, of(12, 8, ""), 10),  # resumed by this one, and killed at once
    ],
)
def test_what_belongs_together_is_resumed(found: Halves) -> None:
    assert disagreement(found, FOLDER) == ""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"run": {"name": "one", "folder": str(tmp_path)}, "store": {"map_gib": 0.05}})


@pytest.fixture
def worked(config: Config) -> RunLayout:
    """A run's folder with samples of three steps and a checkpoint after two."""
    config, layout = runs.create(config)
    id = runs.ids_of(layout.folder)[-1]
    local = LocalStore(layout.database)
    local.do(lambda batch: local.writes.open_run(batch, OpenRun(run="one", fingerprint="{}", id=id)))
    for step in range(3):
        local.put(new_sample(step))
    local.database.close()
    checkpoint.save(layout.checkpoints, 2, lambda made: (made / "weights").write_text("w") and None, 2, id)
    return layout


def test_a_store_of_no_bytes_is_refused_and_left_as_it_is(worked: RunLayout) -> None:
    """What an accident of disk, rsync or power leaves."""
    halves.check(worked)
    (worked.database / "data.mdb").write_bytes(b"")
    with pytest.raises(RunMismatch, match=r"data\.mdb is missing or empty, but this run has worked"):
        halves.check(worked)
    assert (worked.database / "data.mdb").stat().st_size == 0
    shutil.rmtree(worked.database)
    with pytest.raises(RunMismatch, match="is missing or empty"):
        halves.check(worked)
    assert not worked.database.exists()


def test_a_run_whose_id_file_is_gone_takes_the_id_of_its_store(worked: RunLayout, config: Config) -> None:
    ids = runs.ids_of(worked.folder)
    (worked.folder / runs.ID).unlink()
    halves.check(worked)
    runs.save(config)
    assert runs.ids_of(worked.folder) == ids


def test_another_store_of_the_same_name_and_settings_is_refused(worked: RunLayout, tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "other")
    local.do(lambda batch: local.writes.open_run(batch, OpenRun(run="one", fingerprint="{}", id="of another")))
    with pytest.raises(RunMismatch, match="is the store of another run"):
        local.do(lambda batch: local.writes.open_run(batch, OpenRun(run="one", fingerprint="{}", id="this one")))
    local.database.close()
    shutil.copyfile(tmp_path / "other" / "data.mdb", worked.database / "data.mdb")
    with pytest.raises(RunMismatch, match=r"store of another run \(id of another"):
        halves.check(worked)


def test_without_history_the_old_store_is_kept_and_the_new_one_begins_at_the_checkpoint(
    worked: RunLayout, config: Config
) -> None:
    first = runs.ids_of(worked.folder)
    said = halves.without_history(config, worked)
    assert said == f"continuing after 2 steps with an empty history; the old store is {worked.folder}/store.old-1"
    halves.check(worked)
    assert runs.ids_of(worked.folder)[:-1] == first
    position = position_of(worked.database)
    assert position == Position(False, runs.ids_of(worked.folder)[-1], forgotten=2, end=2, settled=2)
    old = position_of(worked.folder / "store.old-1")
    assert old is not None
    assert (old.end, old.id) == (3, first[-1])


def test_without_a_checkpoint_there_is_nothing_to_continue_from(worked: RunLayout, config: Config) -> None:
    shutil.rmtree(worked.checkpoints)
    with pytest.raises(ConfigError, match="has no checkpoint to continue from"):
        halves.without_history(config, worked)
    assert position_of(worked.database) is not None


def test_a_checkpoint_names_its_run(worked: RunLayout) -> None:
    found = checkpoint.checkpoints_in(worked.checkpoints)[-1]
    assert checkpoint.run_of(found.folder) == runs.ids_of(worked.folder)[-1]
    assert checkpoint.damage(found.folder) == ""
    with pytest.raises(RunMismatch, match="was written by another run"):
        checkpoint.resume(worked.checkpoints, ["of another"])
    manifest = json.loads((found.folder / "manifest.json").read_text())
    del manifest["run"]  # as earlier releases
    (found.folder / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.resume(worked.checkpoints, ["of another"]) == found
