"""What both sides are asked to do, and the table of what they did; the runs themselves are the benchmark's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import tasks
from benchmarks.peers.results import open_results, rounds_of
from benchmarks.peers.run import run, seconds, table
from benchmarks.peers.trl_run import reward_of
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.run.provenance import machine, versions


def measured(who: str, second: float, number: int = 0) -> dict[str, Any]:
    steps = [{"seconds": 100.0, "reward": 0.0, "length": 8.0}]
    steps += [{"seconds": second + step, "reward": 0.1 * step, "length": 8.0} for step in range(1, 5)]
    return {"task": "quickstart", "who": who, "round": number, "steps": steps, "peak_bytes": 2 << 30}


def test_the_table_leaves_the_first_step_out_and_compares_with_ours() -> None:
    runs = [
        measured("rhymed", 8.0),
        measured("TRL", 38.0) | {"versions": {"trl": "1.16.0"}},
        measured("rhymed", 8.0, 1),
    ]
    assert seconds(runs[0]) == [9.0, 10.0, 11.0, 12.0]
    lines = list(table({"measurements": runs}))
    assert lines[2].startswith("| quickstart | rhymed | 10.5 (")
    assert "; 2 x 5 steps) | 1.00 | 0.350 after 5 | 8 tokens | 2.0 GiB |" in lines[2]
    assert lines[3].startswith("| quickstart | TRL 1.16.0 | 40.5 (")
    assert "| 3.86 |" in lines[3]


def test_trl_gets_the_same_sizes_rows_and_loss(tiny_model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n} + 1", "answer": str(n + 1)}) + "\n" for n in range(8)))
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "data": {"path": str(rows), "system": "Answer with a number."},
            "reward": {"scorer": "exact"},
            "rollout": {"max_prompt_length": 100, "max_response_length": 28},
            "trainer": {"steps": 3, "lr": 1e-4, "micro_tokens": 1100},
        }
    )
    job = tasks.job(config)
    asked = job["arguments"]
    assert asked["per_device_train_batch_size"] == 8  # samples of 128 tokens in 1100
    assert asked["per_device_train_batch_size"] * asked["gradient_accumulation_steps"] == 64
    assert (asked["num_generations"], asked["max_completion_length"], asked["max_steps"]) == (8, 28, 3)
    assert (asked["loss_type"], asked["beta"], asked["epsilon"], asked["learning_rate"]) == ("grpo", 0.0, 0.2, 1e-4)
    assert job["rows"][1]["prompt"] == "Answer with a number.\n\n1 + 1"  # this model has no chat template
    reward = reward_of(json.loads(json.dumps(job["config"])), job["rows"])
    said = [[{"role": "assistant", "content": "2"}], [{"role": "assistant", "content": "3"}]]
    assert reward(completions=said, row=[1, 1], completion_ids=[[5], [6]]) == [1.0, 0.0]


def test_a_model_with_a_chat_template_gets_chats_on_both_sides(tiny_model: Path, tmp_path: Path) -> None:
    model, rows = tmp_path / "model", tmp_path / "rows.jsonl"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text("{% for one in messages %}{{ one.content }} {% endfor %}")
    rows.write_text("".join(json.dumps({"prompt": f"{n} + 1", "answer": str(n + 1)}) + "\n" for n in range(8)))
    data = {"path": str(rows), "system": "Answer with a number."}
    sizes = {"max_prompt_length": 100, "max_response_length": 28}
    config = Config.model_validate(
        {"model": {"path": str(model)}, "data": data, "reward": {"scorer": "exact"}, "rollout": sizes}
    )
    assert tasks.job(config)["rows"][1]["prompt"] == [
        {"role": "system", "content": "Answer with a number."},
        {"role": "user", "content": "1 + 1"},
    ]


def test_mistakes_are_found_before_anything_is_installed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are quickstart, long"):
        run(True, task="short")
    with pytest.raises(ConfigError, match="the first is left out"):
        run(True, steps=1)
    with pytest.raises(ConfigError, match="there is no folder"):
        run(True, out=tmp_path / "none" / "peers.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no file of `python -m benchmarks peers`"):
        run(True, out=tmp_path / "other.json")


def results(file: Path, *measured: dict[str, Any], **changes: Any) -> Path:
    found = {"machine": machine(), "versions": versions(), "measurements": list(measured), **changes}
    file.write_text(json.dumps(found))
    return file


def test_an_interrupted_round_is_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = [measured("rhymed", 8.0), measured("TRL", 38.0)]
    file = results(tmp_path / "peers.json", *whole, measured("rhymed", 8.0, 1))
    found = open_results(file, "quickstart", 5, False)["measurements"]
    assert found == whole
    assert rounds_of(found, "quickstart") == {0}
    assert "a round of" in capsys.readouterr().out


def test_results_of_another_machine_or_size_are_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, one = tmp_path / "peers.json", measured("rhymed", 8.0)
    results(file, one, machine={**machine(), "processor": "Z80, 1 cores"})
    with pytest.raises(ConfigError, match=r"another machine \(processor Z80, 1 cores, here .*name another file with"):
        open_results(file, "quickstart", 5, False)
    results(file, one, machine={**machine(), "system": "Linux 2.4"}, versions={**versions(), "torch": "1.0"})
    open_results(file, "quickstart", 5, False)
    assert "was begun with torch 1.0 (now " in capsys.readouterr().out
    for steps, quick in ((6, False), (5, True)):
        with pytest.raises(ConfigError, match="has quickstart with 5 steps, which is not compared"):
            open_results(file, "quickstart", steps, quick)
    open_results(file, "long", 6, True)
