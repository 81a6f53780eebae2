"""What both sides are asked to do, and the table of what they did; the runs themselves are the benchmark's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.bench.peers import tasks
from rhymed.bench.peers.run import run, seconds, table
from rhymed.bench.peers.trl_run import reward_of
from rhymed.config import Config
from rhymed.errors import ConfigError


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
    assert job["rows"][1]["prompt"] == [
        {"role": "system", "content": "Answer with a number."},
        {"role": "user", "content": "1 + 1"},
    ]
    reward = reward_of(json.loads(json.dumps(job["config"])), job["rows"])
    said = [[{"role": "assistant", "content": "2"}], [{"role": "assistant", "content": "3"}]]
    assert reward(completions=said, row=[1, 1], completion_ids=[[5], [6]]) == [1.0, 0.0]


def test_mistakes_are_found_before_anything_is_installed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are quickstart, long"):
        run(True, task="short")
    with pytest.raises(ConfigError, match="the first is left out"):
        run(True, steps=1)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no file of `rhymed bench peers`"):
        run(True, out=tmp_path / "other.json")
