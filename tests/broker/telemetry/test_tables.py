"""Tables of samples from a real store: bounded, the best and the worst response, and what TensorBoard reads back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError
from rhymed.core.run.metrics import MetricsLog
from rhymed_broker.telemetry.__main__ import CHARACTERS, SampleTables
from rhymed_store.browse import Browse
from tests.records.history.fixtures import make_run, tokenizer
from tests.records.history.folders import APPLES

__all__ = ["make_run", "tokenizer"]

MakeRun = Callable[..., Path]


def tables(folder: Path, most: int) -> SampleTables:
    tree = load_run(folder).model_dump(mode="json")
    return SampleTables(folder, {**tree, "metrics": {**tree["metrics"], "samples": most}})


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


def events(folder: Path) -> dict[str, list[Any]]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: dict[str, list[Any]] = {}
    for file in folder.glob("events.*"):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value))
    return found


def test_tensorboard_gets_text_and_hparams_in_a_process_of_its_own(make_run: MakeRun) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    folder = make_run("one")
    tree = json.loads((folder / "config.json").read_text())
    tree["metrics"] |= {"sinks": ["tensorboard"], "samples": 4}
    (folder / "config.json").write_text(json.dumps(tree))
    log = MetricsLog(folder / "metrics.jsonl")
    log.write(0, {"reward/mean": 0.25})
    log.write(0, {"val/held-out/reward/mean": 0.5})  # an evaluation has no table
    log.write(9, {"reward/mean": 0.5})  # a step whose samples are gone
    log.close()
    command = [sys.executable, "-P", "-m", "rhymed_broker.telemetry", "tensorboard", str(folder / "config.json")]
    subprocess.run(command, check=True, env=os.environ, timeout=200)
    found = events(folder / "tensorboard" / "samples")
    [(step, text)] = found["samples"]
    assert (step, text.metadata.plugin_data.plugin_name) == (0, "text")
    table = text.tensor.string_val[0].decode()
    assert table.startswith("| prompt | response | reward | parts | tokens | sample |\n|---|---|---|---|---|---|\n")
    assert table.count("how many apples") == 2
    assert [value.simple_value for _, value in found["reward/mean"]] == [0.25, 0.5]
    [(_, start)] = [pair for tag, pairs in found.items() if "hparams" in tag for pair in pairs][:1]
    hparams = HParamsPluginData.FromString(start.metadata.plugin_data.content).session_start_info.hparams
    assert hparams["rollout.group_size"].number_value == 8
    assert hparams["trainer.algorithm"].string_value == "grpo"
