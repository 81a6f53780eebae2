"""Histories of honest and dishonest peers against the real broker and store: those that failed once, and new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.core.wire.keys import ROLES, make_keys
from tests.hostile.protocol import search
from tests.hostile.protocol.actions import Action, History, keep, read
from tests.hostile.protocol.play import play
from tests.hostile.protocol.world import Fault


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protocol") / "keys"
    make_keys(folder, ROLES)
    return folder


def test_honest_peers_make_progress(keys: Path) -> None:
    played = play(History([Action("advance")] * 13), keys)
    assert played.trained > 2


def test_honest_peers_make_progress_in_turns(keys: Path) -> None:
    played = play(History([Action("advance")] * 40, turns=True, evaluates=True), keys)
    assert played.trained > 2


@pytest.mark.thorough
@pytest.mark.parametrize("history", read(), ids=lambda history: history.why[:60])
def test_a_history_that_failed_once(history: History, keys: Path) -> None:
    play(history, keys)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_hundred_histories(tmp_path: Path) -> None:
    """The same ones on every machine; `make stress-protocol` plays others."""
    result = search.run(rounds=10, keep=tmp_path / "failed.jsonl")
    assert result["good"], f"{result}: {(tmp_path / 'failed.jsonl').read_text()}"
    assert result["histories"] == 10 * search.A_ROUND


@pytest.mark.thorough
def test_a_fault_is_shrunk_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fault that two messages show."""

    def fails(history: History, keys: Path) -> None:
        bad = [action for action in history.actions if action.verb == "foul" and action.kind > 5]
        if len(bad) > 1:
            raise Fault("after two of them")

    monkeypatch.setattr(search, "play", fails)
    result = search.run(seconds=60, most=1, keep=tmp_path / "failed.jsonl")
    assert not result["good"]
    (history,) = read(tmp_path / "failed.jsonl")
    assert history.why == "after two of them"
    assert history.actions == [Action("foul", kind=action.kind) for action in history.actions]
    assert len(history.actions) == 2


def test_histories_are_kept_as_they_are(tmp_path: Path) -> None:
    history = History([Action("foul", 1, 2, 3, 4, 5), Action("advance")], 1, "why")
    keep(history, tmp_path / "kept.jsonl")
    keep(history, tmp_path / "kept.jsonl")
    assert read(tmp_path / "kept.jsonl") == [history, history]
