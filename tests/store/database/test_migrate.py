"""Folders of other schemas: an older one is taken along, and read as it is."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import zstandard

from rhymed.messages import GetJournal, GetPartials, GetSamples, PutScores, SampleId, Score
from rhymed_store.codec.records import SCHEMA
from rhymed_store.database import migrate
from rhymed_store.database.tables import Reader
from rhymed_store.inspect.browse import Browse
from rhymed_store.integrity.verify import verify
from tests.store.stores import PROMPT, Book, new_sample

TABLES = (b"samples", b"tokens", b"contexts", b"prompts", b"drops", b"journal", b"logprobs", b"partials", b"meta")
TOKENS, LOGPROBS = np.arange(5, 45, dtype="<u4"), np.linspace(-3, 0, 40, dtype="<f4")
CONTEXT = np.arange(7, dtype="<u4")
OLD, BEGUN = SampleId(4, PROMPT, 2), SampleId(4, PROMPT, 3)


def write_first_schema(folder: Path) -> None:
    """One scored sample and one that was begun, byte by byte as schema 1 had them."""
    folder.mkdir()
    pack = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
    frame, check = pack(TOKENS.astype("<u2").tobytes()), zlib.crc32(CONTEXT.tobytes())
    prompt, step = bytes.fromhex(PROMPT), OLD.step + (1 << 31)
    flags = 0 | 1 << 2 | 1 << 4  # stop, scored, with a reward; two bytes a token
    header = struct.pack("<IIIQIBd", 40, 7, check, 0, len(frame), flags, 0.25) + struct.pack("<iI", 4, 40)
    line = struct.pack("<BIiBd", 1, 40, 4, 1, 0.25)
    journal = struct.pack(">I8sH", step, prompt, OLD.index)
    with lmdb.open(str(folder), max_dbs=16, map_size=1 << 24) as env:
        tables = {name: env.open_db(name) for name in TABLES}
        with env.begin(write=True) as txn:
            for table, key, value in (
                (b"samples", struct.pack(">8sIH", prompt, step, OLD.index), header),
                (b"tokens", bytes(8), frame),
                (b"contexts", prompt + check.to_bytes(4, "big"), b"\x02" + pack(CONTEXT.astype("<u2").tobytes())),
                (b"logprobs", journal, zlib.crc32(LOGPROBS.tobytes()).to_bytes(4, "little") + LOGPROBS.tobytes()),
                (b"journal", journal, line),
                (b"partials", struct.pack(">I8sH", step, prompt, BEGUN.index), pack(TOKENS.tobytes())),
                (b"meta", b"schema", b"1"),
                (b"meta", b"tokens", b"40"),
            ):
                txn.put(key, value, db=tables[table])


def test_a_folder_of_the_first_schema_is_read_and_taken_along(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    write_first_schema(folder)
    assert verify(folder).findings == []
    with Reader(folder) as reader:
        (response,) = Browse(reader).responses(PROMPT)
        assert (response.info.reward, response.state, response.tokens.tolist()) == (0.25, "scored", TOKENS.tolist())
    book = Book(folder)
    with book.history.read() as txn:
        assert book.history.number(txn, "schema") == SCHEMA == 3
    found, (tokens, logprobs) = book.reads.samples(GetSamples(samples=[OLD], logprobs=True))
    assert found.samples[0].length == 40
    np.testing.assert_array_equal(tokens, TOKENS)
    assert bytes(logprobs) == LOGPROBS.tobytes()
    assert book.reads.partials(GetPartials(samples=[BEGUN]))[0].samples == []
    assert [entry.state for entry in book.reads.journal(GetJournal(from_step=0)).entries] == ["scored"]
    book.do(lambda b: book.writes.put_scores(b, PutScores(scores=[Score(id=OLD, reward=0.5)])))
    book.put(new_sample(5))
    assert book.reads.samples(GetSamples(samples=[OLD]))[0].samples[0].reward == 0.5
    book.history.close()
    assert verify(folder).findings == []


def test_a_folder_of_the_schema_before_masks_is_read_and_goes_on_as_it_is(tmp_path: Path) -> None:
    folder, old, new = tmp_path / "store", new_sample(4, 0), new_sample(5, 0)
    book = Book(folder)
    book.put(replace(old, drafted=None))
    book.do(lambda batch: book.history.put_number(batch.txn, "schema", 2))
    book.history.close()
    data = (folder / "data.mdb").read_bytes()
    with Reader(folder) as reader:
        assert [response.drafted for response in Browse(reader).responses(PROMPT)] == [None]
    assert verify(folder).findings == []
    assert (folder / "data.mdb").read_bytes() == data
    book = Book(folder)
    book.put(new)
    with book.history.read() as txn:
        assert book.history.number(txn, "schema") == SCHEMA
    book.history.close()
    with Reader(folder) as reader:
        before, after = Browse(reader).responses(PROMPT)
    assert before.drafted is None
    np.testing.assert_array_equal(after.drafted, new.drafted)
    assert verify(folder).findings == []


def test_a_migration_that_is_cut_off_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "store"
    write_first_schema(folder)

    def breaks(txn: object, tables: object) -> None:
        raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setitem(migrate.MIGRATIONS, 1, breaks)
        try:
            Book(folder)
        except RuntimeError as error:
            assert str(error) == "cut off"  # noqa: PT017
    with lmdb.open(str(folder), max_dbs=16) as env, env.begin() as txn:
        assert txn.get(b"schema", db=env.open_db(b"meta", txn=txn)) == b"1"
        assert txn.stat(env.open_db(b"partials", txn=txn))["entries"] == 1
    Book(folder).history.close()
    assert verify(folder).findings == []


def test_a_folder_whose_store_was_killed_before_its_first_commit_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with lmdb.open(str(folder), max_dbs=16, map_size=1 << 24) as env, env.begin(write=True) as txn:
        for name in TABLES:
            env.open_db(name, txn=txn)
    assert verify(folder).findings == []
    book = Book(folder)
    book.put(new_sample(0))
    book.history.close()
    assert verify(folder).counts["samples"] == 1
