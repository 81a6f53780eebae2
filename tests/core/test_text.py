from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.messages import EVAL
from rhymed.core.text import epoch_name, readable, response_name, step_name, toml_key, toml_value, trained_line

PLAIN = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


def test_people_count_from_1() -> None:
    assert (step_name(0), epoch_name(0), response_name(0)) == ("step 1", "epoch 1", "#1")


def test_ids_of_evaluations_are_written_without_the_offset() -> None:
    id = "00000000000000ab/1"
    assert readable(f"takes {EVAL}/{id}, {EVAL + 12}/{id}: 0") == f"takes eval-v0/{id}, eval-v12/{id}: 0"
    same = f"3/{id}, -3/{id}, {EVAL - 1}/{id}, {EVAL} samples, folder/{EVAL}/{id}"
    assert readable(same) == same


def test_the_trainers_line_is_short_and_has_labels() -> None:
    metrics = {
        "actor/entropy": 4.0271, "actor/grad_norm": 0.9565, "actor/loss": -0.839, "actor/lr": 0.0002,
        "actor/samples": 64.0, "actor/tokens": 335.0, "mismatch_kl/mean": 7.493e-11, "reward/flat_groups": 0.25,
        "timing_s/train": 20.31, "perf/train_tokens_per_s": 31.46,
    }  # fmt: skip
    assert trained_line(metrics) == (
        "25% of the groups flat, loss -0.839, entropy 4.03, gradient norm 0.957, learning rate 0.0002,"
        " mismatch 7.5e-11, 335 tokens, 20.3 s"
    )
    assert trained_line({"reward/flat_groups": 1.0, "timing_s/train": 0.2}) == "100% of the groups flat, 0.2 s"


@given(st.text(), VALUES)
def test_values_are_read_back_from_toml_as_they_were(key: str, value: Any) -> None:
    assert tomllib.loads(f"{toml_key(key)} = {toml_value(value)}") == {key: value}


def test_toml_escapes_of_every_length_and_keys_with_quotes() -> None:
    assert toml_value("a\U000e0001b\x07") == '"a\\U000e0001b\\u0007"'
    assert toml_value({"learning rate": 1e-6, "": [True], "a-b_1": ["\\d"]}) == (
        '{ "learning rate" = 1e-06, "" = [true], a-b_1 = [\'\\d\'] }'
    )
    assert math.isnan(tomllib.loads(f"x = {toml_value(math.nan)}")["x"])
    with pytest.raises(TypeError, match="no value for None"):
        toml_value([None])
