"""Folders of other schemas are refused; one that has none yet is new."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from rhymed.core.errors import StoreError
from rhymed_store.database.tables import TABLES, Reader
from rhymed_store.verify import verify
from tests.store.stores import LocalStore, new_sample


@pytest.mark.parametrize("schema", [1, 3, 5])
def test_a_folder_of_another_schema_is_refused_and_left_alone(tmp_path: Path, schema: int) -> None:
    folder = tmp_path / "store"
    local = LocalStore(folder)
    local.put(new_sample(4))
    local.do(lambda batch: local.database.put_number(batch.txn, "schema", schema))
    local.database.close()
    data = (folder / "data.mdb").read_bytes()
    for opened in (LocalStore, Reader, verify):
        with pytest.raises(StoreError, match=f"is of schema {schema}, this release reads and writes schema 4 only"):
            opened(folder)
    assert (folder / "data.mdb").read_bytes().startswith(data)


def test_a_folder_whose_store_was_killed_before_its_first_commit_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with lmdb.open(str(folder), max_dbs=16, map_size=1 << 24) as env, env.begin(write=True) as txn:
        for name in TABLES:
            env.open_db(name.encode(), txn=txn)
    assert verify(folder).findings == []
    local = LocalStore(folder)
    local.put(new_sample(0))
    local.database.close()
    assert verify(folder).counts["samples"] == 1
