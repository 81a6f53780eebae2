"""`rhymed history verify` and `backup` over real stores, one of them at work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed.core.run.layout import layout_of
from rhymed_store.client import StoreClient
from rhymed_store.codec.records import sample_key
from tests.store.damage import content, write
from tests.store.stores import PROMPT, new_sample, start_process


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    write(tmp_path / "kept" / "store")
    return tmp_path / "kept"


def damage(run: Path) -> str:
    """The record of one sample, wherever it stands in the file."""
    file, key = run / "store" / "data.mdb", sample_key(SampleId(3, PROMPT, 3))
    data = bytearray(file.read_bytes())
    at, places = data.find(key), []
    while at >= 0:
        places.append(at)
        at = data.find(key, at + 1)
    for place in places:
        data[place + len(key) + 4] ^= 1
    file.write_bytes(data)
    return f"sample 3/{PROMPT}/3"


def test_a_sound_store_is_reported_to_be_so(kept: Path, rhymed) -> None:
    status, out, err = rhymed("verify", kept)
    assert (status, err) == (0, "")
    assert "96 samples, 3 prompts" in out
    assert "all as they were written" in out
    assert rhymed("verify", kept / "store")[0] == 0


def test_damage_is_named_with_the_ways_on(kept: Path, rhymed) -> None:
    name = damage(kept)
    assert f"rhymed run --resume {kept} --without-history" in rhymed("verify", kept / "store")[1]
    status, out, _ = rhymed("verify", kept)
    assert status == 1
    assert f"samples: {name}: its record is damaged" in out
    assert "95 samples, 3 prompts" in out
    assert f"rhymed run --resume {kept} --without-history" in out


def test_a_file_that_kills_its_reader_is_reported_to_be_damaged(kept: Path, rhymed) -> None:
    file = kept / "store" / "data.mdb"
    for size in (16 << 12, 5000):
        os.truncate(file, size)
        status, out, err = rhymed("verify", kept)
        assert (status, err) == (1, "")
        assert "pages: data.mdb: " in out
        assert "reading it ended with SIGBUS" in out
        assert "rhymed history backup" in out
    os.truncate(file, 0)
    status, _, err = rhymed("verify", kept)
    assert (status, "no store process has opened it yet" in err) == (1, True)


def test_what_cannot_be_kept_up_is_reported(kept: Path, tmp_path: Path, rhymed) -> None:
    assert "does not exist" in rhymed("verify", tmp_path / "gone")[2]
    (tmp_path / "there").mkdir()
    status, _, err = rhymed("backup", kept, tmp_path / "there")
    assert (status, "exists already" in err) == (2, True)
    name = damage(kept)
    status, _, err = rhymed("backup", kept, tmp_path / "copy")
    assert status == 2
    assert name in err
    assert f"rhymed run --resume {kept} --without-history" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "there"], "no half of a copy is left"


def test_a_backup_opens_as_a_run(run: Path, tmp_path: Path, rhymed) -> None:
    status, out, _ = rhymed("backup", run, tmp_path / "far" / "copy")
    assert status == 0
    assert "8 samples" in out
    assert "verified" in out
    copy = tmp_path / "far" / "copy"
    assert rhymed("stats", copy)[1].replace("copy", "earlier") == rhymed("stats", run)[1]
    assert rhymed("compare", run, copy)[0] == 0
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["copy"]


async def test_verify_and_backup_work_beside_a_store_that_is_written(tmp_path: Path) -> None:
    """A real store process, in the middle of its writes at each of them."""
    config = Config.model_validate({"run": {"folder": str(tmp_path)}, "store": {"map_gib": 0.25}})
    where = layout_of(config)
    process = start_process(config)
    client = StoreClient(where.store, "test")

    def history(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rhymed", "history", *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    try:
        put, step = [new_sample(0, index, length=900) for index in range(20)], 0
        await client.put_samples(put)
        for number in range(3):
            asked = [history("verify", where.folder), history("backup", where.folder, tmp_path / f"copy-{number}")]
            while any(one.poll() is None for one in asked):
                step += 1
                fresh = [new_sample(step, index, length=300 * index) for index in range(10)]
                await client.put_samples(fresh)
                await client.mark([sample.info.id for sample in fresh], "trained")
                await client.forget_logprobs(step - 1)  # pages to use again: what a snapshot must not lose
                put += fresh
            for one in asked:
                output = one.communicate()[0]
                assert one.returncode == 0, output
            had = content_of_samples(tmp_path / f"copy-{number}" / "store")
            assert set(map(str, (sample.info.id for sample in put[:20]))) <= had
    finally:
        client.close()
        process.terminate()
        process.wait(60)


def content_of_samples(store: Path) -> set[str]:
    return {name.removeprefix("sample ") for name in content(store) if name.startswith("sample")}
