from __future__ import annotations

import json
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.inputs.datasets import load_rows
from rhymed.inputs.gym import freeze, gym_entry, thaw
from rhymed.inputs.rows import Row, prompt_id


def config(**data: Any) -> Config:
    return Config.model_validate({"data": data, "rollout": {"prompts_per_step": 1}})


def test_reasoning_gym_is_a_function_of_the_seed() -> None:
    def load(seed: int, size: int) -> list[Row]:
        return load_rows(Config.model_validate({"run": {"seed": seed}, "data": {"size": size}}))

    rows = load(3, 16)
    assert rows[:8] == load(3, 8)
    assert len({prompt_id(row) for row in rows}) == 16
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in load(1000, 16)}  # it adds seed and index
    assert rows[0].keys() == {"prompt", "answer", "metadata", "data_source"}


def test_reasoning_gym_entries_survive_json() -> None:
    from reasoning_gym import create_dataset

    task = "graph_color"  # keys of its graph are numbers, edges are tuples
    entries = list(create_dataset(task, size=8, seed=0))
    rows = load_rows(config(task=task, size=8))
    assert [gym_entry(json.loads(json.dumps(row))) for row in rows] == entries


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of cellpylib's source, where it is compiled for the first time
def test_a_package_that_is_loaded_at_its_first_use_makes_the_same_rows() -> None:
    from reasoning_gym import create_dataset

    rows = load_rows(config(task="game_of_life", size=2))
    assert [gym_entry(row) for row in rows] == list(create_dataset("game_of_life", size=2, seed=0))


def test_composite_takes_its_parts_from_the_configuration() -> None:
    parts = [{"name": name, "weight": 1.0, "config": {}} for name in ("chain_sum", "gcd")]
    rows = load_rows(config(task="composite", size=8, args={"datasets": parts}))
    assert {row["metadata"]["source_dataset"] for row in rows} == {"chain_sum", "gcd"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"task": "chain_sums"}, "did you mean chain_sum"),
        ({"task": "zzz"}, "known: .*chain_sum"),
        ({"args": {"min_term": 2}}, "has no argument 'min_term'; known: .*min_terms"),
        ({"args": {"min_terms": 0}}, "chain_sum refuses its arguments"),
    ],
)
def test_reasoning_gym_mistakes(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_rows(config(**data))


def test_freeze_and_thaw() -> None:
    value = {"a": (1, [2, (3,)]), "b": {1: "x", (0, 1): {"y": None}}, "c": {"__tuple__": [1]}, "d": 10**40}
    assert thaw(json.loads(json.dumps(freeze(value)))) == value
    assert freeze({"prompt": "q"}) == {"prompt": "q"}


def test_held_out_entries_are_the_same_in_every_run_and_no_training_entries() -> None:
    def load(seed: int) -> tuple[set[str], list[Row]]:
        made = Config.model_validate(
            {"run": {"seed": seed}, "eval": {"datasets": [{"name": "sums", "size": 16}]}, "data": {"size": 64}}
        )
        return {row["prompt"] for row in load_rows(made)}, load_rows(made, made.eval.datasets[0])

    (first, held_out), (second, again) = load(0), load(1)
    assert held_out == again
    assert not {row["prompt"] for row in held_out} & (first | second)
