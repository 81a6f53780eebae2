"""The probe of a database: a child process reads it, and how that ends says whether it is damaged."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import lmdb
import pytest

from rhymed.core.errors import StoreDamaged, StoreError
from rhymed_store.database.child import REFUSED, death, fail
from rhymed_store.database.probe import probe
from rhymed_store.position import position_of
from tests.store.stores import LocalStore, new_sample


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = LocalStore(tmp_path / "store")
    store.put(*(new_sample(step, index, length=900) for step in range(4) for index in range(20)))
    store.database.close()
    return tmp_path / "store"


def test_a_sound_database_passes_and_a_truncated_one_kills_only_the_child(folder: Path) -> None:
    probe(folder)
    os.truncate(folder / "data.mdb", 16 << 12)
    with pytest.raises(StoreDamaged, match=r"reading it ended with SIGBUS.*rhymed history backup"):
        probe(folder)


def test_a_walk_that_reaches_its_time_limit_has_found_no_damage(folder: Path) -> None:
    probe(folder, limit_s=1e-4)


def test_only_a_crash_is_damage(folder: Path) -> None:
    assert death(-signal.SIGSEGV, folder) == "reading it ended with SIGSEGV"
    with pytest.raises(StoreError, match="was ended by SIGTERM") as error:
        death(-signal.SIGTERM, folder)
    assert not isinstance(error.value, StoreDamaged)


@pytest.fixture
def short_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children have an address space of 4 GiB."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -v {4 << 20}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("short_of_memory")
def test_too_little_memory_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    LocalStore(folder, 8 << 30).database.close()
    for read in (probe, position_of):
        with pytest.raises(StoreError, match="Cannot allocate memory") as error:
            read(folder)
        assert not isinstance(error.value, StoreDamaged)


@pytest.mark.parametrize("at", [32, 136])
def test_a_header_that_claims_more_than_a_process_can_map_is_damage(folder: Path, at: int) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    with (folder / "data.mdb").open("r+b") as file:
        for header in (0, page):
            file.seek(header + at)
            file.write((1 << 48).to_bytes(8, "little"))
    for read in (probe, position_of):
        with pytest.raises(StoreDamaged, match="Cannot allocate memory"):
            read(folder)


def test_no_place_for_another_reader_is_no_damage(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with lmdb.open(str(folder), readonly=True, max_readers=256, max_spare_txns=256) as env:
        readers = [env.begin() for _ in range(env.info()["max_readers"])]
        for read in (lambda: probe(folder, target=tmp_path / "copy"), lambda: position_of(folder)):
            with pytest.raises(StoreError, match="READERS_FULL") as error:
                read()
            assert not isinstance(error.value, StoreDamaged)
        for reader in readers:
            reader.abort()
    probe(folder, target=tmp_path / "copy")


def test_a_folder_of_another_user_is_no_damage(folder: Path) -> None:
    """LMDB's error where we may read the file, and may not write its lock."""
    assert fail(lmdb.ReadonlyError("Permission denied"), str(folder)) == REFUSED


def test_a_child_that_cannot_start_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StoreError, match="the process that reads it failed: status 1") as error:
        probe(folder)
    assert not isinstance(error.value, StoreDamaged)


def test_a_folder_without_a_database_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store process has opened it yet") as error:
        probe(tmp_path, target=tmp_path)
    assert not isinstance(error.value, StoreDamaged)


def test_a_missing_table_is_named(folder: Path) -> None:
    with lmdb.open(str(folder), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.drop(env.open_db(b"drops", txn=txn))
    with pytest.raises(StoreDamaged, match="table 'drops' is missing"):
        probe(folder)


def test_a_copy_is_compact_and_a_target_that_cannot_be_written_is_no_damage(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    probe(folder, target=tmp_path / "copy")
    probe(tmp_path / "copy")
    with pytest.raises(StoreError, match="cannot be copied to") as error:
        probe(folder, target=tmp_path / "copy" / "missing")
    assert not isinstance(error.value, StoreDamaged)
