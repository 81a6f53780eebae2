"""The folder of one engine's own: what it keeps, and that nothing about it can stop an engine."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rhymed.core.errors import RunMismatch
from rhymed.histospec import local
from rhymed.histospec.local import LocalStore, open_local
from rhymed_store.columns import ROUNDS
from rhymed_store.database.tables import Reader

PROMPT, OTHER = "00000000000000aa", "00000000000000bb"


def model(vocabulary: int = 300) -> SimpleNamespace:
    config = SimpleNamespace(architectures=["Llama"])
    return SimpleNamespace(tokenizer="none", hf_config=config, get_vocab_size=lambda: vocabulary)


def opened(folder: Path, vocabulary: int = 300, responses: int = 4) -> LocalStore:
    store = open_local(str(folder), model(vocabulary), responses)
    assert store is not None
    return store


def past(store: LocalStore, prompt: str = PROMPT) -> list[tuple[int, list[int]]]:
    return [(one.step, one.tokens.tolist()) for one in store.read(prompt)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With one round of two responses."""
    store = opened(tmp_path / "history")
    store.read(PROMPT)
    store.write(PROMPT, [1, 2], [3, 4, 5])
    store.write(PROMPT, [1, 2], [6])
    store.close()
    return tmp_path / "history"


@pytest.fixture
def held(folder: Path) -> Iterator[Path]:
    """Another process has it open."""
    program = (
        "import sys; from pathlib import Path; from rhymed.histospec.local import LocalStore, fingerprint;"
        "sys.path.insert(0, sys.argv[2]); from tests.histospec.test_local import model;"
        "store = LocalStore(Path(sys.argv[1]), fingerprint(model()), 4); print('open', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(Path(__file__).parents[2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield folder
        process.communicate("\n", timeout=60)


def test_each_round_finds_the_ones_before_it_newest_first(folder):
    store = opened(folder)
    assert past(store) == [(ROUNDS, [3, 4, 5]), (ROUNDS, [6])]
    store.write(PROMPT, [1, 2], [7, 8])
    assert past(store) == [(ROUNDS + 1, [7, 8]), (ROUNDS, [3, 4, 5]), (ROUNDS, [6])]
    for token in range(9, 14):
        store.read(PROMPT)
        store.write(PROMPT, [1, 2], [token])
    assert [tokens for _, tokens in past(store)] == [[13], [12], [11], [10]], "as many as were asked for"
    assert past(store, OTHER) == []
    store.close()


def test_a_response_is_there_as_soon_as_it_is_written(held):
    """Whatever ends the engine: here another process reads while the store is open and unsynced."""
    with Reader(held) as reader, reader.read() as txn:
        assert reader.number(txn, "tokens") == 4


def test_no_responses_wanted_still_counts_the_rounds(folder):
    store = opened(folder, responses=0)
    assert past(store) == []
    store.write(PROMPT, [1, 2], [7])
    store.close()
    store = opened(folder)
    assert past(store)[0] == (ROUNDS + 1, [7])
    store.close()


def test_what_another_process_writes_is_read_only(held, caplog):
    store = opened(held)
    assert "is opened read-only" in caplog.text
    assert past(store) == [(ROUNDS, [3, 4, 5]), (ROUNDS, [6])]
    store.write(PROMPT, [1, 2], [9])
    assert len(past(store)) == 2
    store.close()


def test_another_models_folder_is_refused_also_where_it_is_only_read(held, caplog):
    assert open_local(str(held), model(400), 4) is None
    assert "drafting continues without the history" in caplog.text
    assert '"vocabulary": 400' in caplog.text


def test_who_was_refused_leaves_the_folder_to_others(folder):
    assert open_local(str(folder), model(400), 4) is None
    store = opened(folder)
    store.write(PROMPT, [1, 2], [9])
    assert len(past(store)) == 3
    store.close()


def test_the_store_of_a_run_is_refused(folder, monkeypatch):
    monkeypatch.setattr(local, "RUN", "somebody's")
    with pytest.raises(RunMismatch, match="store of run 'engine'"):
        LocalStore(folder, local.fingerprint(model()), 4)


@pytest.mark.parametrize("what", ["garbage", "cut", "no folder", "no place"])
def test_a_folder_that_cannot_be_used_is_reported_and_done_without(folder, what, caplog):
    data = folder / "data.mdb"
    if what == "garbage":
        data.write_bytes(np.random.default_rng(0).bytes(data.stat().st_size))
    elif what == "cut":
        data.write_bytes(data.read_bytes()[:12_000])
    elif what == "no folder":
        folder = data
    else:
        folder = Path("/proc/rhymed/history")
    assert open_local(str(folder), model(), 4) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "drafting continues without the history" in caplog.text


def test_a_folder_that_cannot_be_written_is_read(folder, caplog):
    (folder / "writer.lock").unlink()
    (folder / "writer.lock").mkdir()
    store = opened(folder)
    assert "is opened read-only" in caplog.text
    assert len(past(store)) == 2
    store.close()


def test_a_full_store_is_reported_once_and_goes_on_being_read(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(local, "MAP_BYTES", 1 << 20)
    store = opened(tmp_path / "history")
    rng = np.random.default_rng(0)
    for _ in range(12):
        store.write(PROMPT, [1, 2], rng.integers(0, 300, 100_000).tolist())
    assert len(caplog.records) == 1
    assert "responses are no longer stored" in caplog.text
    assert past(store)
    store.close()
