"""Tables of samples from a real store: bounded, the best and the worst response."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rhymed.core.config import Metrics
from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError
from rhymed_broker.telemetry.__main__ import CHARACTERS, SampleTables
from rhymed_store.browse import Browse
from tests.records.history.fixtures import make_run, tokenizer
from tests.records.history.folders import APPLES

__all__ = ["make_run", "tokenizer"]

MakeRun = Callable[..., Path]


def tables(folder: Path, most: int) -> SampleTables:
    config = load_run(folder)
    return SampleTables(folder, config.model_copy(update={"metrics": Metrics(samples=most)}))


def test_a_steps_prompts_with_their_best_and_their_worst_response(make_run: MakeRun) -> None:
    found = tables(make_run("one"), 8)
    best, worst = found.of_step(0)
    assert (best.reward, worst.reward) == (0.5, 0.0)
    assert best.prompt == "how many apples are there?"
    assert best.sample.endswith("/1")
    assert len(best.response) == best.tokens == 11
    [flat] = found.of_step(2)  # both have the same reward
    assert (flat.reward, flat.parts, best.parts) == (1.0, "exact 1, format 0.25", "")
    assert found.of_step(7) == []
    assert list(best._fields) == ["prompt", "response", "reward", "parts", "tokens", "sample"]


def test_tables_are_bounded(make_run: MakeRun) -> None:
    long = [(0, APPLES, index, [40] * 5000, float(index)) for index in range(3)]
    found = tables(make_run("one", long), 1).of_step(0)
    assert [row.reward for row in found] == [2.0]
    assert len(found[0].response) == CHARACTERS
    assert not tables(make_run("two"), 0).wanted


def test_a_chat_of_any_shape_has_a_table(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = [{"role": "assistant", "tool_calls": []}, {"role": "user", "content": "so?"}, {"content": None}, "plain"]
    monkeypatch.setattr(Browse, "row", lambda self, prompt: json.dumps({"prompt": chat}))
    assert tables(make_run("one"), 8).of_step(0)[0].prompt == "assistant: \nuser: so?\nNone: \nplain"


def test_a_run_without_text_has_no_tables(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the trace engine has no tokenizer"):
        tables(make_run("one", engine="trace"), 8).of_step(0)
