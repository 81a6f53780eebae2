"""Advice: which steps give which, and that what it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rhymed.core.config import Config
from rhymed.show.advice import METRICS, RECENT, RULES, advise

ROOT = Path(__file__).parents[2]
FAULTS = {
    "erring": ("reward/error_rate", 0.0, 0.3),
    "mismatch": ("mismatch_kl/mean", 1e-3, 0.3),
    "flat": ("reward/flat_groups", 0.2, 0.95),
    "clipped": ("response_length/clip_ratio", 0.02, 0.4),
}
"""Name -> its metric, a healthy value, and one that is not."""


def rows(count: int = 2 * RECENT, **now: Any) -> list[dict[str, Any]]:
    """Healthy steps; the newest have these values instead."""
    healthy = {metric: value for metric, value, _ in FAULTS.values()}
    return [{"step": step, **healthy, **(now if step >= count - RECENT else {})} for step in range(count)]


def names(*args: Any, **more: Any) -> list[str]:
    return [found["name"] for found in advise(rows(*args, **more), {})]


def test_a_healthy_run_and_its_first_steps_need_no_advice() -> None:
    assert names() == []
    assert names(0) == []
    assert names(RECENT - 1, **{"reward/error_rate": 1.0}) == []
    assert advise([{"step": step, "reward/mean": None} for step in range(20)], {}) == []
    assert advise([*rows(**{"reward/error_rate": 1.0}), *rows(RECENT)], {}) == [], "it is over"


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_each_fault_has_a_name_and_two_sentences(name: str) -> None:
    metric, _, bad = FAULTS[name]
    (found,) = advise(rows(**{metric: bad}), {})
    assert found["name"] == name
    assert found["wrong"].endswith(".")
    assert found["change"].endswith(".")
    for unknown in (None, float("nan")):  # NaN is in metrics.jsonl as training gave it
        assert names(**{metric: unknown}) == []


def test_an_algorithm_without_groups_may_have_flat_ones() -> None:
    flat = rows(**{"reward/flat_groups": 1.0})
    assert advise(flat, {"trainer": {"algorithm": "ppo"}}) == []
    assert len(advise(flat, {"trainer": {"algorithm": "grpo"}})) == 1
    assert len(advise(flat, {"trainer": "damaged"})) == 1


def test_settings_and_metrics_that_advice_names_exist() -> None:
    source = (ROOT / "rhymed/show/advice.py").read_text()
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    texts = re.findall(r"[\"'](.*)[\"']", source)
    named = {pair for text in texts for pair in re.findall(r"\b([a-z]+)\.([a-z_]+)", text)}
    checked = [(section, key) for section, key in named if section in sections]
    assert len(checked) > 5
    for section, key in checked:
        model = sections[section]
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        assert key in model.model_fields, f"{section}.{key}"
    page = (ROOT / "docs/metrics.md").read_text()
    assert [key for key in METRICS if key.split("/")[-1] not in page] == []
