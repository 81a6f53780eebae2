"""Overviews agree with what the store says of each sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rhymed.core.messages import EVAL
from rhymed.records.history.catalog import MOST_EPOCHS, Catalog
from rhymed_store import columns
from rhymed_store.browse import Browse
from rhymed_store.columns import epochs_of, read_columns
from rhymed_store.database.tables import Reader
from tests.records.history.folders import APPLES, write_store
from tests.store.damage import write


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_survey_is_all_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(columns, "SLICE", size)
    write(tmp_path / "store")  # imported, dropped, held out, unscored
    with Reader(tmp_path / "store") as reader:
        browse = Browse(reader)
        found = [row for prompt in browse.ids() for row in browse.headers(prompt)]
        made = read_columns(reader)
    assert made.damaged == 0
    assert [f"{int(number):016x}" for number in made.prompt] == [sample.prompt for sample, _ in found]
    assert made.step.tolist() == [sample.step for sample, _ in found]
    assert made.length.tolist() == [record.length for _, record in found]
    rewards = [record.info(sample).reward for sample, record in found]
    assert [None if np.isnan(one) else one for one in made.reward] == rewards
    assert made.dropped.tolist() == [record.state == "dropped" for _, record in found]


def test_epochs_are_those_of_the_history(tmp_path: Path) -> None:
    write(tmp_path / "store")
    with Reader(tmp_path / "store") as reader:
        browse = Browse(reader)
        wanted = []
        for prompt in browse.ids():
            samples = [sample for sample, _ in browse.headers(prompt)]
            numbers = epochs_of(sample.step for sample in samples)
            wanted += [numbers[sample.step] for sample in samples]
        catalog = Catalog(read_columns(reader))
    assert catalog.epochs.tolist() == wanted
    assert {-1, 0, EVAL + 1} <= set(wanted)


def test_what_is_not_known_comes_last(tmp_path: Path) -> None:
    other = "0" * 15 + "1"
    write_store(tmp_path, [(0, APPLES, 0, [1, 2], None), (0, other, 0, [1], 0.5), (0, other, 1, [], 1.5)])
    with Reader(tmp_path / "store") as reader:
        catalog = Catalog(read_columns(reader))
    unscored = catalog.ids.index(APPLES)
    for down in (True, False):
        assert catalog.order("reward", down=down)[-1] == unscored
        assert catalog.order("spread", down=down)[-1] == unscored
    (first, second) = catalog.rows([1 - unscored, unscored], ["a", "b"])
    assert (first["reward"], first["spread"], first["length"]) == (1.0, 0.5, 0.5)
    assert (second["reward"], second["spread"]) == (None, None)


def test_an_empty_store_has_an_empty_overview(tmp_path: Path) -> None:
    write_store(tmp_path, [])
    with Reader(tmp_path / "store") as reader:
        catalog = Catalog(read_columns(reader))
    assert (catalog.ids, catalog.lengths, catalog.order("spread", down=True)) == ([], [], [])


def test_of_very_many_epochs_the_newest_are_shown(tmp_path: Path) -> None:
    write_store(tmp_path, [(step, APPLES, 0, [1], None) for step in range(MOST_EPOCHS + 3)])
    with Reader(tmp_path / "store") as reader:
        lengths = Catalog(read_columns(reader)).lengths
    assert [lengths[0]["epoch"], lengths[-1]["epoch"], len(lengths)] == [3, MOST_EPOCHS + 2, MOST_EPOCHS]


def test_a_damaged_record_is_left_out(tmp_path: Path) -> None:
    write_store(tmp_path, [(0, APPLES, index, [5] * (index + 1), 1.0) for index in range(3)])
    with Reader(tmp_path / "store") as reader, reader.read() as txn, txn.cursor(reader.tables["samples"]) as cursor:
        assert cursor.first()
        record = bytes(cursor.value())
    file = tmp_path / "store" / "data.mdb"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(record, b"\xff" + record[1:]))
    with Reader(tmp_path / "store") as reader:
        catalog = Catalog(read_columns(reader))
    assert catalog.columns.damaged == 1
    assert catalog.columns.length.tolist() == [2, 3]
