"""Advice: which steps give which, and that what it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rhymed.core.config import Config
from rhymed.show.advice import METRICS, RECENT, START, advise

ROOT = Path(__file__).parents[2]
HEALTHY = {
    "reward/mean": 0.5, "reward/flat_groups": 0.2, "reward/error_rate": 0.0, "reward/timeout_rate": 0.0,
    "actor/entropy": 1.0, "response_length/mean": 100.0, "response_length/clip_ratio": 0.02, "mismatch_kl/mean": 1e-3,
    "rollout/bubble_ratio": 0.1, "timing_s/reward": 0.1, "timing_s/step": 10.0, "actor/skipped_updates": 0.0,
    "actor/rejected": 0.1, "rollout/dropped": 0.0, "rollout/samples": 64.0,
}  # fmt: skip


def rows(count: int = START + RECENT, **now: Any) -> list[dict[str, Any]]:
    """Healthy steps; the newest have these values instead."""
    healthy = max(0, count - RECENT)
    return [{"step": step, **HEALTHY, **(now if step >= healthy else {})} for step in range(count)]


def names(*args: Any, **more: Any) -> list[str]:
    return [found.name for found in advise(rows(*args, **more), {})]


def test_a_healthy_run_and_its_first_steps_need_no_advice() -> None:
    assert names() == []
    assert names(0) == []
    assert names(4, **{"reward/error_rate": 1.0}) == []
    assert advise([{"step": step, "reward/mean": None} for step in range(20)], {}) == []


def test_responses_that_are_no_longer_cut_need_no_advice() -> None:
    steps = rows(10, **{"response_length/clip_ratio": 0.6})
    for step in steps[-3:]:
        step["response_length/clip_ratio"] = 0.0
    assert advise(steps, {}) == []


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("timeouts", {"reward/error_rate": 0.3, "reward/timeout_rate": 0.3}),
        ("erring", {"reward/error_rate": 0.3}),
        ("skipped", {"actor/skipped_updates": 1.0}),
        ("rejected", {"actor/rejected": 1.0}),
        ("mismatch", {"mismatch_kl/mean": 0.3}),
        ("flat", {"reward/flat_groups": 0.95}),
        ("entropy", {"actor/entropy": 0.02}),
        ("length", {"response_length/mean": 260.0}),
        ("clipped", {"response_length/clip_ratio": 0.4}),
        ("dropped", {"rollout/dropped": 16.0}),
        ("scoring", {"timing_s/reward": 5.0}),
        ("starved", {"rollout/bubble_ratio": 0.7}),
    ],
)
def test_each_trouble_has_a_name_and_two_sentences(name: str, now: dict[str, float]) -> None:
    (found,) = advise(rows(**now), {})
    assert found.name == name
    assert found.wrong.endswith(".")
    assert found.change.endswith(".")
    assert names(**{key: None for key in now}) == [], "a run that does not report it"


@pytest.mark.parametrize("key", [key for key in HEALTHY if "skipped" not in key and "dropped" not in key])
def test_a_metric_that_is_no_number_is_as_good_as_none(key: str) -> None:
    """NaN is in metrics.jsonl as training gave it."""
    assert names(**{key: float("nan")}) == []


def test_longer_responses_need_a_reward_to_be_judged() -> None:
    assert names(**{"response_length/mean": 260.0, "reward/mean": None}) == []


def test_what_a_solved_run_looks_like_is_no_collapse() -> None:
    solved = {"reward/mean": 0.98, "reward/flat_groups": 0.95, "actor/entropy": 0.01}
    (found,) = advise(rows(**solved), {})
    assert (found.name, found.change) == (
        "flat",
        "The prompts are solved: end the run, or continue with harder rows.",
    )
    assert names(**{"response_length/mean": 260.0, "reward/mean": 0.8}) == [], "longer and better"


def test_the_configuration_decides_what_to_change() -> None:
    flat = rows(**{"reward/flat_groups": 1.0})
    assert advise(flat, {"trainer": {"algorithm": "ppo"}}) == [], "it needs no groups"
    assert len(advise(flat, {"trainer": {"algorithm": "grpo"}})) == 1
    (starved,) = advise(rows(**{"rollout/bubble_ratio": 0.7}), {"schedule": {"run_ahead": 1}})
    assert "run_ahead" not in starved.change
    (cut,) = advise(rows(**{"response_length/clip_ratio": 1.0}), {"rollout": {"max_response_length": 2048}})
    assert "of 2,048 tokens" in cut.wrong
    (stale,) = advise(rows(**{"mismatch_kl/mean": 1.0}), {"schedule": {"max_staleness": 2}})
    assert "max_staleness" in stale.change
    assert len(advise(flat, {"trainer": "damaged"})) == 1


def test_settings_and_metrics_that_advice_names_exist() -> None:
    source = (ROOT / "rhymed/show/advice.py").read_text()
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    texts = re.findall(r"[\"'](.*)[\"']", source)
    named = {pair for text in texts for pair in re.findall(r"\b([a-z]+)\.([a-z_]+)", text)}
    checked = [(section, key) for section, key in named if section in sections]
    assert len(checked) > 8
    for section, key in checked:
        model = sections[section]
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        assert key in model.model_fields, f"{section}.{key}"
    page = (ROOT / "docs/metrics.md").read_text()
    assert [key for key in METRICS if key.split("/")[-1] not in page] == []
