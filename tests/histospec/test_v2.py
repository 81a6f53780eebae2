"""Keyed sampling and drafts from history in vLLM's model runner V2, by Triton's interpreter: neither drafts, nor
preemption, nor the runner change a token. Prompts are prefilled in chunks, and the cache is too small for all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench_v2.bench import environment
from tests.packages import needs

ROOT = Path(__file__).parents[2]
pytestmark = [needs("vllm"), needs("triton"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]


def run(model: Path, what: str, runner: str, *, asynchronous: bool = False, **more: str) -> dict[str, Any]:
    """`more`: variables of its environment."""
    command = [sys.executable, "-m", "tests.histospec.v2_engine", str(model), what]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=880,
        cwd=ROOT,
        env=environment(runner=runner, asynchronous=asynchronous) | more,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    reported: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return reported  # log lines are around it


@pytest.fixture(scope="module")
def v2(sharp_model: Path) -> dict[str, Any]:
    return run(sharp_model, "v2", "1")


def equal(one: dict[str, Any], other: dict[str, Any], apart: float) -> None:
    """In tokens, log-probs, and floors of top-p, top-k and min-p."""
    assert other["tokens"] == one["tokens"]
    for floors, wanted in zip(other["floors"], one["floors"], strict=True):
        assert floors == pytest.approx(wanted, abs=apart)
    assert sum(min(floors) < 0 for floors in one["floors"]) > 3, "some requests leave tokens out"
    assert len({tuple(tokens) for tokens in one["tokens"]}) > 8, "requests differ"
    for logprobs, expected in zip(other["logprobs"], one["logprobs"], strict=True):
        assert logprobs == pytest.approx(expected, abs=apart)


def test_the_engine_does_what_is_hard(v2: dict[str, Any]) -> None:
    assert "vllm.v1.worker.gpu.model_runner" in v2["kind"]
    assert min(v2["preempted"]) > 0
    assert v2["broken"] is False, "drafting has not failed"
    assert v2["drafted"]["accepted"] < v2["drafted"]["drafted"], "some drafts are wrong"


@pytest.mark.parametrize("how", ["drafted", "reset"])
def test_drafts_change_neither_tokens_nor_logprobs(v2: dict[str, Any], how: str) -> None:
    """`reset`: all running requests are preempted at once, four times."""
    equal(v2["plain"], v2[how], 1e-5)
    assert v2[how]["accepted"] > 0
    assert v2[how]["steps"] < v2["plain"]["steps"]


@pytest.fixture(scope="module")
def v1(sharp_model: Path) -> dict[str, Any]:
    made: dict[str, Any] = run(sharp_model, "v1", "0")["plain"]
    return made


def test_both_runners_make_the_same_tokens(v1: dict[str, Any], v2: dict[str, Any]) -> None:
    equal(v1, v2["plain"], 1e-4)


@pytest.fixture(scope="module")
def fresh(sharp_model: Path) -> dict[str, Any]:
    return run(sharp_model, "v2", "1", asynchronous=True)


def test_the_engine_schedules_ahead_and_does_what_is_hard(fresh: dict[str, Any]) -> None:
    assert fresh["asynchronous"] is True
    assert min(fresh["preempted"]) > 0
    assert fresh["broken"] is False, "drafting has not failed"


@pytest.mark.parametrize("how", ["drafted", "reset"])
def test_fresh_drafts_change_neither_tokens_nor_logprobs(fresh: dict[str, Any], how: str) -> None:
    """`reset`: all running requests are preempted at once while a step is computed, four times."""
    equal(fresh["plain"], fresh[how], 1e-5)
    assert fresh[how]["accepted"] > 0


def test_fresh_drafts_are_accepted_as_those_of_synchronous_scheduling(
    v2: dict[str, Any], fresh: dict[str, Any]
) -> None:
    assert v2["asynchronous"] is False
    equal(v2["plain"], fresh["plain"], 1e-5)
    assert fresh["drafted"]["accepted"] == pytest.approx(v2["drafted"]["accepted"], rel=0.1)
