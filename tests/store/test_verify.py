"""Damage at rest: found, named, never followed."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from rhymed.core.errors import RhymedError, StoreDamaged
from rhymed.core.messages import PutScores, SampleId, Score
from rhymed_store.browse import Browse
from rhymed_store.codec.records import journal_key, sample_key, unpack_record
from rhymed_store.database.probe import probe
from rhymed_store.database.tables import Reader
from rhymed_store.position import position_of
from rhymed_store.verify import verify
from tests.store.damage import BEGUN, content, write
from tests.store.stores import PROMPT, LocalStore, new_sample

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "store"
    write(folder)
    return folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store"


def used(file: Path) -> int:
    """Bytes that the last commit uses."""
    with lmdb.open(str(file.parent), readonly=True, lock=False) as env:
        return (int(env.info()["last_pgno"]) + 1) * PAGE


def roots(folder: Path) -> dict[str, int]:
    """Page number of every table's root that is not empty."""
    with lmdb.open(str(folder), readonly=True, lock=False) as env, env.begin() as txn:
        trees = {bytes(key).decode(): struct.unpack("<IHHQQQQQ", value) for key, value in txn.cursor()}
    return {name: tree[7] for name, tree in trees.items() if tree[6]}


def flip(file: Path, places: list[int], bits: random.Random) -> None:
    data = bytearray(file.read_bytes())
    for place in places:
        data[place] ^= 1 << bits.randrange(8)
    file.write_bytes(data)


def change(folder: Path, table: bytes, key: bytes, new: Callable[[bytes], bytes | None]) -> None:
    """One value, through LMDB: the tree stays whole. None: the entry goes."""
    with lmdb.open(str(folder), max_dbs=16, map_size=1 << 30) as env, env.begin(write=True) as txn:
        handle = env.open_db(table, txn=txn)
        value = new(txn.get(key, db=handle))
        _ = txn.delete(key, db=handle) if value is None else txn.put(key, value, db=handle)


def last_flipped(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 4])


def named(folder: Path) -> list[tuple[str, str]]:
    return [(finding.table, finding.name) for finding in verify(folder).findings]


def test_a_sound_store_is_all_counted(whole: Path) -> None:
    report = verify(whole)
    assert report.findings == []
    assert (report.counts["samples"], report.counts["prompts"], report.counts["partials"]) == (96, 3, 20)
    found = content(whole)
    assert report.tokens == sum(len(fields[3]) for name, fields in found.items() if name.startswith("sample"))
    assert report.counts["journal"] == sum(name.startswith("line") for name in found)


@pytest.mark.parametrize(
    ("table", "key", "name"),
    [
        (b"samples", sample_key(SampleId(3, PROMPT, 3)), f"sample 3/{PROMPT}/3"),
        (b"logprobs", journal_key(SampleId(3, PROMPT, 6)), f"sample 3/{PROMPT}/6"),
        (b"journal", journal_key(SampleId(3, PROMPT, 0)), f"sample 3/{PROMPT}/0"),
        (b"prompts", bytes.fromhex(PROMPT), f"prompt {PROMPT}"),
        (b"partials", journal_key(BEGUN) + (60).to_bytes(4, "big"), f"sample {BEGUN}"),
        (b"meta", b"forgotten", "'forgotten'"),
        (b"meta", b"id", "'id'"),
    ],
)
def test_what_is_changed_is_named(store: Path, table: bytes, key: bytes, name: str) -> None:
    change(store, table, key, last_flipped if table != b"meta" else lambda _: b"t\xff")
    assert named(store) == [("samples" if table in (b"logprobs", b"journal") else table.decode(), name)]


@pytest.mark.parametrize("floors", [None, np.arange(-5, 0, dtype=np.float32)])
def test_floors_are_verified_with_the_log_probs(tmp_path: Path, floors: Any) -> None:
    given, store = [new_sample(0, index, length=5) for index in range(2)], LocalStore(tmp_path / "store")
    given = [replace(sample, floors=floors) for sample in given]
    ids = [sample.info.id for sample in given]
    store.put(*given)
    store.database.close()
    assert named(store.database.folder) == []
    change(store.database.folder, b"logprobs", journal_key(ids[0]), last_flipped)
    assert named(store.database.folder) == [("samples", f"sample {ids[0]}")]


def test_parts_of_a_reward_are_verified(tmp_path: Path) -> None:
    given, store = [new_sample(0, index, length=5) for index in range(3)], LocalStore(tmp_path / "store")
    ids, folder = [sample.info.id for sample in given], store.database.folder
    store.put(*given)
    for parts in ({"math": 0.5, "mine/tone": 1.0}, {"math": 0.0}):  # the later ones replace the first
        scores = PutScores(scores=[Score(id=id, reward=1.0, parts=parts) for id in ids[:2]])
        store.do(lambda batch, scores=scores: store.writes.put_scores(batch, scores))
    store.database.close()
    assert named(folder) == []
    change(folder, b"parts", sample_key(ids[0]), last_flipped)
    assert named(folder) == [("parts", f"sample {ids[0]}")]
    with Reader(folder) as reader, pytest.raises(StoreDamaged, match=f"sample {ids[0]}: the parts of its reward"):
        Browse(reader).responses(PROMPT)


def test_a_damaged_mask_is_named(store: Path) -> None:
    hurt = SampleId(3, PROMPT, 3)
    with Reader(store) as reader, reader.read() as txn:
        key = sample_key(hurt)
        record = unpack_record(key, txn.get(key, db=reader.tables["samples"]))
    place = record.position + record.size
    with Reader(store) as reader, reader.read() as txn, txn.cursor(reader.tables["tokens"]) as cursor:
        piece = max(int.from_bytes(key, "big") for key, _ in cursor if int.from_bytes(key, "big") <= place)

    def flipped(value: bytes) -> bytes:
        at = place - piece
        return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]

    change(store, b"tokens", piece.to_bytes(8, "big"), flipped)
    with Reader(store) as reader, pytest.raises(StoreDamaged, match=f"sample {hurt}: which tokens were drafted"):
        Browse(reader).responses(PROMPT)
    assert named(store) == [("samples", f"sample {hurt}")]


def test_a_line_too_few_and_one_too_many_are_found(store: Path) -> None:
    change(store, b"journal", journal_key(SampleId(3, PROMPT, 0)), lambda _: None)
    change(store, b"journal", journal_key(SampleId(4, PROMPT, 77)), lambda _: bytes(18))
    assert named(store) == [("samples", f"sample 3/{PROMPT}/0"), ("journal", f"sample 4/{PROMPT}/77")]


def test_a_sample_too_few_is_found_by_the_number_of_tokens(store: Path) -> None:
    change(store, b"meta", b"tokens", lambda _: b"5")
    assert named(store) == [("meta", "the number of tokens")]


def seeds(count: int) -> list[Any]:
    """The first one in `make test`."""
    return [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, count))]


def survive(store: Path, before: dict[str, Any]) -> None:
    """Nothing that reads the file dies or is deceived."""
    report = verify(store)
    try:
        position_of(store)
    except StoreDamaged:
        assert not report.sound
    if report.sound:
        assert content(store) == before


@pytest.mark.parametrize("seed", seeds(8))
def test_flipped_bits_anywhere_are_survived(store: Path, whole: Path, seed: int) -> None:
    bits = random.Random(seed)
    size = used(store / "data.mdb")
    before = content(whole)
    for _ in range(4):
        shutil.copyfile(whole / "data.mdb", store / "data.mdb")
        flip(store / "data.mdb", [bits.randrange(PAGE * 2, size) for _ in range(bits.choice((1, 3, 40)))], bits)
        survive(store, before)


@pytest.mark.parametrize("seed", seeds(4))
def test_destroyed_pages_are_survived(store: Path, whole: Path, seed: int) -> None:
    bits = random.Random(seed)
    file, before = store / "data.mdb", content(whole)
    for _ in range(4):
        data = bytearray((whole / "data.mdb").read_bytes())
        for _ in range(bits.choice((1, 2, 5))):
            page, other = (bits.randrange(2, used(whole / "data.mdb") // PAGE) * PAGE for _ in range(2))
            data[page : page + PAGE] = bits.choice((bytes(PAGE), bits.randbytes(PAGE), data[other : other + PAGE]))
        file.write_bytes(
            data[: bits.choice((len(data), len(data), used(whole / "data.mdb") - PAGE * bits.randrange(9)))]
        )
        survive(store, before)


@pytest.mark.parametrize("filler", [b"\0", b"\xa5", b"\xff"])
def test_a_destroyed_leaf_is_found(tmp_path: Path, filler: bytes) -> None:
    folder = tmp_path / "store"
    local = LocalStore(folder)
    local.put(*(new_sample(step, index, length=20) for step in range(30) for index in range(20)))
    local.database.close()
    data, key = bytearray((folder / "data.mdb").read_bytes()), sample_key(SampleId(15, PROMPT, 7))
    page = data.find(key) // PAGE
    assert data.find(key, (page + 1) * PAGE) == -1, "one page has it"
    data[page * PAGE : (page + 1) * PAGE] = filler * PAGE
    (folder / "data.mdb").write_bytes(data)
    (finding, *_) = verify(folder).findings
    assert (finding.table, "table 'samples'" in finding.why) == ("pages", True)


def test_a_destroyed_tree_is_named_by_its_table_and_the_store_refuses_it(store: Path) -> None:
    whole = (store / "data.mdb").read_bytes()
    for name, root in roots(store).items():
        data = bytearray(whole)
        data[root * PAGE + 12 : root * PAGE + 16] = b"\xff\xff\x01\x00"
        (store / "data.mdb").write_bytes(data)
        with pytest.raises(StoreDamaged, match=rf"table '{name}'.*rhymed history backup.*--without-history"):
            LocalStore(store)
        with pytest.raises(StoreDamaged, match=f"table '{name}'"):
            probe(store, target=store)
        assert f"table '{name}'" in verify(store).findings[0].why


def test_a_file_without_a_header_is_damaged(store: Path, whole: Path) -> None:
    data = (whole / "data.mdb").read_bytes()
    for lost in ([0, 1], [0], [1]):
        (store / "data.mdb").write_bytes(
            b"".join(bytes(PAGE) if page in lost else data[page * PAGE : (page + 1) * PAGE] for page in (0, 1))
            + data[2 * PAGE :]
        )
        assert named(store) == [("pages", "data.mdb")]
        with pytest.raises(RhymedError, match="its headers"):
            LocalStore(store)


def test_a_list_of_free_pages_that_names_used_ones_is_found(store: Path) -> None:
    """By the number of pages: none may be missing from the table's trees and the list."""
    with lmdb.open(str(store), readonly=True, lock=False) as env:
        header = env.info()["last_txnid"] % 2 * PAGE
    data = bytearray((store / "data.mdb").read_bytes())
    (free,) = struct.unpack_from("<Q", data, header + 80)  # root of the list, a leaf of small lists
    node = free * PAGE + struct.unpack_from("<H", data, free * PAGE + 16)[0]
    data[node + 16] ^= 1  # how many pages the first list names
    (store / "data.mdb").write_bytes(data)
    assert named(store) == [("pages", "data.mdb")]
    with pytest.raises(StoreDamaged, match="list of free pages"):
        probe(store)


def test_a_look_after_a_kill_is_at_every_page(store: Path) -> None:
    assert (store / "writer.lock").read_bytes() == b""
    local = LocalStore(store)
    assert (store / "writer.lock").read_bytes() == b"open"
    local.database.close()
    assert (store / "writer.lock").read_bytes() == b""
