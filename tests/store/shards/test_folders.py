"""The stores of a run read, checked, copied and resumed as one, and each alone."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rhymed.config import Config
from rhymed.errors import ConfigError, RunMismatch, StoreError
from rhymed.history import maintenance
from rhymed.history.folder import open_folder
from rhymed.history.stats import stats
from rhymed.launch import halves
from rhymed.messages import ForgetLogprobs, GetSamples, MarkSamples, OpenRun, SampleId
from rhymed.remote.backups import Backups
from rhymed.remote.place import open_place
from rhymed.remote.restore import restore
from rhymed.run import checkpoint
from rhymed.run import folder as runs
from rhymed.run.layout import RunLayout, layout_of
from rhymed_store.codec.records import sample_key
from rhymed_store.inspect.browse import Browse
from rhymed_store.position import position_of
from rhymed_store.shards.browse import ShardedBrowse, StoreReader
from rhymed_store.shards.folders import folders_of, position_of_all
from rhymed_store.shards.split import shard_of
from tests.packages import needs
from tests.store.stores import LocalStore, new_sample

PROMPTS = ("00000000000000aa", "7fffffffffffffff", "8000000000000001", "fe000000000000ab")


def made(folder: Path, shards: int, *, name: str = "run", ids: Sequence[str] = ("a",)) -> RunLayout:
    """A run's folder with samples of three steps in its stores, and a checkpoint after two."""
    given = {"run": {"folder": str(folder), "name": name}, "store": {"map_gib": 0.0625, "shards": shards}}
    layout = layout_of(Config.model_validate(given))
    runs.save(Config.model_validate(given))
    (layout.folder / runs.ID).write_text(json.dumps(list(ids)))
    for one in layout.stores:
        local = LocalStore(one.database)
        claim = OpenRun(run=name, fingerprint="{}", id=ids[-1])
        local.do(lambda batch, local=local, claim=claim: local.writes.open_run(batch, claim))
        own = [prompt for prompt in PROMPTS if shard_of(prompt, shards) == one.shard]
        local.put(
            *(new_sample(step, index, prompt=prompt) for prompt in own for step in range(3) for index in (0, 1))
        )
        dropped = [SampleId(2, prompt, index) for prompt in own for index in (1, 7)]
        drop = MarkSamples(samples=dropped, state="dropped", reason="too late")
        local.do(lambda batch, local=local, drop=drop: local.writes.mark(batch, drop))
        forget = ForgetLogprobs(below_step=2)
        local.do(lambda batch, local=local, forget=forget: local.writes.forget_logprobs(batch, forget))
        local.database.close()
    checkpoint.save(layout.checkpoints, 2, lambda at: (at / "weights").write_text("w") and None, 2, ids[-1])
    return layout


def grow(one: RunLayout, steps: int, *, forget: bool = True) -> None:
    """A store has trained further steps, and heard of a checkpoint after them."""
    local = LocalStore(one.database)
    own = [prompt for prompt in PROMPTS if shard_of(prompt, one.shards) == one.shard]
    samples = [new_sample(step, index, prompt=prompt) for prompt in own for step in range(steps) for index in (0, 1)]
    local.put(*samples)
    marks = MarkSamples(samples=[sample.info.id for sample in samples], state="trained")
    local.do(lambda batch: local.writes.mark(batch, marks))
    if forget:
        local.do(lambda batch: local.writes.forget_logprobs(batch, ForgetLogprobs(below_step=steps)))
    local.database.close()


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return made(tmp_path, 2)


def damage(store: Path, sample: SampleId) -> None:
    file, key = store / "data.mdb", sample_key(sample)
    content = bytearray(file.read_bytes())
    at = content.find(key)
    while at >= 0:
        content[at + len(key) + 4] ^= 1
        at = content.find(key, at + 1)
    file.write_bytes(content)


def test_every_query_of_several_stores_is_answered_as_by_one(tmp_path: Path) -> None:
    single, several = made(tmp_path, 1, name="one"), made(tmp_path, 2, name="two")
    with StoreReader(single.database) as first, StoreReader(several.database) as second:
        one, two = first.browse, second.browse
        assert isinstance(two, ShardedBrowse)
        assert two.ids() == one.ids() == list(PROMPTS)
        assert two.totals()[:3] == one.totals()[:3] == (24, 1200, 0)
        assert two.prompts_of_step(1, 3) == one.prompts_of_step(1, 3) == list(PROMPTS[:3])
        assert (two.begins(), two.drawn_steps()) == (one.begins(), one.drawn_steps())
        for name in ("prompt", "step", "length", "dropped"):
            assert np.array_equal(getattr(two.columns(), name), getattr(one.columns(), name)), name
        for prompt in PROMPTS:
            assert [row.sample for row in two.headers(prompt)] == [row.sample for row in one.headers(prompt)]
            pairs = zip(two.responses(prompt), one.responses(prompt), strict=True)
            assert all(a.info == b.info and np.array_equal(a.tokens, b.tokens) for a, b in pairs)
            assert two.drops(prompt) == one.drops(prompt) != {}
            assert two.row(prompt) is one.row(prompt) is None
        rows = [[browse.headers(prompt)[1] for prompt in reversed(PROMPTS)] for browse in (two, one)]
        assert all(np.array_equal(a, b) for a, b in zip(two.drafted(rows[0]), one.drafted(rows[1]), strict=True))
        ids = [row.sample for row in rows[0]]
        assert two.token_stats(ids) == one.token_stats(ids) == [None] * 4
        assert np.array_equal(*(browse.samples(GetSamples(samples=ids[:1]))[1][0] for browse in (one, two)))
        assert second.changes > first.changes > 0
        assert stats(two).length_mean == stats(one).length_mean
    queries = {name for name, value in vars(Browse).items() if inspect.isfunction(value) and name[0] != "_"}
    assert queries <= vars(ShardedBrowse).keys()


def test_the_number_is_that_of_the_configuration_and_each_can_be_named_alone(layout: RunLayout) -> None:
    names = ["store", "store-1"]
    assert [folder.name for folder in folders_of(layout.database)] == names
    assert folders_of(layout.folder / "store-1") == [layout.folder / "store-1"]
    with open_folder(layout.folder / "store-1") as run:
        assert run.browse.ids() == list(PROMPTS[2:])
    shutil.move(layout.folder / "store-1", layout.folder / "aside")
    assert [folder.name for folder in folders_of(layout.database)] == names
    with pytest.raises(StoreError, match=r"store-1 has no data\.mdb"), open_folder(layout.folder):
        pass
    (layout.folder / "config.json").unlink()
    assert folders_of(layout.database) == [layout.database]
    shutil.move(layout.folder / "aside", layout.folder / "store-1")
    assert [folder.name for folder in folders_of(layout.database)] == names


def test_damage_of_one_store_is_named_and_repaired_without_the_other(layout: RunLayout) -> None:
    assert maintenance.verify_run(layout.folder)[0].counts["samples"] == 24
    damage(layout.folder / "store-1", SampleId(1, PROMPTS[3], 0))
    report, _ = maintenance.verify_run(layout.folder)
    assert f"store-1: sample 1/{PROMPTS[3]}/0" in [name for _, name, _ in report.findings]
    assert maintenance.verify_run(layout.folder / "store-1")[0].findings
    before = (layout.database / "data.mdb").read_bytes()
    _, kept = maintenance.repair_run(layout.folder)
    assert [old.parent.name for old in kept] == ["store-1"]
    assert (layout.database / "data.mdb").read_bytes() == before
    report, _ = maintenance.verify_run(layout.folder)
    assert (report.sound, report.counts["samples"]) == (True, 23)


def test_a_backup_has_all_stores(layout: RunLayout, tmp_path: Path) -> None:
    report = maintenance.backup_run(layout.folder, tmp_path / "copy")
    assert report.counts["samples"] == 24
    assert maintenance.verify_run(tmp_path / "copy")[0].counts == report.counts
    with pytest.raises(ConfigError, match="one of several stores, which are copied together"):
        maintenance.backup_run(layout.folder / "store-1", tmp_path / "other")


def test_a_run_is_resumed_only_with_all_of_its_stores(layout: RunLayout) -> None:
    halves.check(layout)
    position = position_of_all(layout.database)
    assert position is not None
    assert (position.end, position.forgotten, position.id) == (3, 2, "a")
    shutil.move(layout.folder / "store-1", layout.folder / "aside")
    with pytest.raises(RunMismatch, match=r"store-1/data.mdb is missing or empty.*own store-1/data.mdb back"):
        halves.check(layout)
    assert position_of_all(layout.database) is None
    other = made(layout.folder.parent, 2, name="other", ids=["b"])
    shutil.copytree(other.folder / "store-1", layout.folder / "store-1")
    with pytest.raises(RunMismatch, match=r"store-1 is the store of another run \(id b; this run is a\)"):
        halves.check(layout)


def test_a_run_is_not_resumed_with_an_older_copy_of_one_of_its_stores(layout: RunLayout) -> None:
    first, second = layout.stores
    shutil.copytree(second.database, layout.folder / "older")
    shutil.copytree(first.database, layout.folder / "older first")
    for one in layout.stores:
        grow(one, 5)
    checkpoint.save(layout.checkpoints, 5, lambda at: (at / "weights").write_text("w") and None, 2, "a")
    halves.check(layout)
    shutil.rmtree(second.database)
    (layout.folder / "older").rename(second.database)
    with pytest.raises(RunMismatch, match=r"store-1 is older than the run's other .* of 2 steps, they of 5\. Either"):
        halves.check(layout)
    shutil.rmtree(first.database)
    (layout.folder / "older first").rename(first.database)
    with pytest.raises(RunMismatch, match=r"store is older than the checkpoints"):
        halves.check(layout)


def test_a_store_that_missed_the_news_of_a_checkpoint_is_not_older(layout: RunLayout) -> None:
    """It was away when the others heard of it, and the broker died then."""
    grow(layout.stores[0], 5)
    grow(layout.stores[1], 5, forget=False)
    checkpoint.save(layout.checkpoints, 5, lambda at: (at / "weights").write_text("w") and None, 2, "a")
    halves.check(layout)


def test_without_history_all_stores_are_put_aside_and_begin_at_the_checkpoint(layout: RunLayout) -> None:
    config = Config.model_validate({"store": {"map_gib": 0.0625, "shards": 2}})
    said = halves.without_history(config, layout)
    assert "store.old-1 and " in said
    assert said.endswith("store-1.old-1")
    for one in layout.stores:
        position = position_of(one.database)
        assert position is not None
        assert (position.forgotten, position.id) == (2, runs.ids_of(layout.folder)[-1])
    halves.check(layout)


@needs("fsspec")
def test_a_copy_on_shared_storage_has_all_stores(layout: RunLayout, tmp_path: Path) -> None:
    remote = tmp_path / "shared"
    remote.mkdir()
    place = open_place(str(remote)).child("run")
    backups = Backups(place)
    backup, _ = backups.make(layout.folder, 3, [])
    assert {"store/data.mdb", "store-1/data.mdb"} <= backup.files.keys()
    assert backups.seal(backup, [2]) or backups.seal(backup, [backup.forgotten])
    from rhymed.remote.checkpoints import Checkpoints, stage

    Checkpoints(place).upload(stage(checkpoint.checkpoints_in(layout.checkpoints)[-1]))
    restored = restore(f"{remote}/run", tmp_path / "again")
    assert maintenance.verify_run(restored.folder)[0].counts["samples"] == 24
    with open_folder(restored.folder) as run:
        assert run.browse.ids() == list(PROMPTS)


def test_another_number_of_stores_is_refused_with_the_way_out(layout: RunLayout) -> None:
    def config(shards: int) -> Config:
        return Config.model_validate({"store": {"shards": shards}})

    runs.check_same(config(2), config(2), layout)
    for now in (1, 3):
        with pytest.raises(RunMismatch, match=r"in 2 stores, by prompt: resume it with -o store\.shards=2; .*import"):
            runs.check_same(config(2), config(now), layout)
    assert "store.shards" not in runs.identity(config(1))  # as runs of earlier releases have it
