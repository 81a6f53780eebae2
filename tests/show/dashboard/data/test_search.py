"""A search in parts finds each response once, whatever is written between the parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.records.history.folder import open_folder
from rhymed.show.dashboard.data.samples import search
from tests.records.history.folders import APPLES, PEARS


def test_a_prompt_that_comes_between_two_parts_moves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = sorted([APPLES, PEARS])
    with open_folder(run) as folder:
        whole = search(folder, ids, "hijk")
        monkeypatch.setattr("rhymed.show.dashboard.data.samples.BUDGET_S", -1.0)
        first = search(folder, ids, "hijk")
        assert (first["next"], first["before"]) == (ids[1], 1)
        rest = search(folder, ["0" * 16, *ids], "hijk", first["next"])
        assert first["found"] + rest["found"] == whole["found"]
        assert (rest["next"], rest["before"]) == (None, 3)
        gone = search(folder, [ids[1]], "hijk", ids[0])
        assert gone["found"] == rest["found"], "continues at the next prompt that is there"
