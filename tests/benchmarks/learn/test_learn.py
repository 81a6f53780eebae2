"""`python -m benchmarks learn`: which runs are made, and that a finished run is read instead of repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learn import variants
from benchmarks.learn.learn import run
from rhymed.core.algorithms import ALGORITHMS

TASK = """
[data]
source = "reasoning_gym"
task = "chain_sum"
size = 8
[rollout]
engine = "trace"
prompts_per_step = 4
group_size = 2
[trace]
mean_length = 20
step_s = 0.001
train_s = 0.0
[reward]
scorer = "exact"
[trainer]
engine = "trace"
epochs = 2
"""


def test_every_algorithm_that_learns_from_rewards_is_compared() -> None:
    assert set(variants.names()) == {*ALGORITHMS, "grpo+lora"} - set(variants.WITHOUT_REWARD)


def test_first_seeds_come_before_second_ones() -> None:
    made = [(variant.name, seed) for variant, seed in variants.pairs(["grpo", "bnpo"], None)]
    assert made == [("grpo", 0), ("bnpo", 0), ("grpo", 1), ("grpo", 2)]
    assert [seed for _, seed in variants.pairs(["bnpo"], 2)] == [0, 1]


def test_adapters_get_their_own_learning_rate() -> None:
    assert set(variants.variant("grpo+lora").settings) == {"trainer.algorithm=grpo", *variants.PARTS["lora"]}
    with pytest.raises(ValueError, match="unknown algorithm 'grpoo'; there are grpo"):
        variants.variant("grpoo")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_finished_run_is_read_and_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = tmp_path / "task.toml"
    task.write_text(TASK)
    first = run(False, config=task, algorithms=["grpo"], seeds=1, out=tmp_path / "out")
    (row,) = first["runs"]
    assert first["good"]
    assert (row["steps"], row["algorithm"], row["seed"]) == (4, "grpo", 0)
    assert row["held_out_last"] is not None
    assert row["peak_gib"] > 0
    assert len(row["rewards"]) == 4
    starts = Path(row["run"], "starts.jsonl").read_text()
    assert run(False, config=task, algorithms=["grpo"], seeds=1, out=tmp_path / "out") == first
    assert Path(row["run"], "starts.jsonl").read_text() == starts
    assert json.loads((tmp_path / "out" / "learn.json").read_text()) == first["runs"]
    assert capsys.readouterr().out.count("s per step") == 2
