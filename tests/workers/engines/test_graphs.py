"""Draft lengths and CUDA graphs in the arguments of an engine: on a GPU only."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm")

import vllm.config  # before it is asked for the platform
import vllm.platforms

from rhymed.core.config import Config
from rhymed_workers.engines import launch

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own


def arguments(monkeypatch: pytest.MonkeyPatch, *, cpu: bool, **drafts: object) -> dict:
    monkeypatch.setattr(vllm.platforms.current_platform, "is_cpu", lambda: cpu)
    monkeypatch.setattr(launch, "_warn_of_slow_bfloat16", lambda dtype: None)
    config = Config.model_validate({"drafts": drafts, "rollout": {"max_concurrency": 48}})
    return launch.arguments(config, Path("model"))


def test_an_engine_that_drafts_on_a_gpu_has_full_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = arguments(monkeypatch, cpu=False)
    assert made["speculative_config"]["num_speculative_tokens"] == 31
    assert made["compilation_config"]["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert made["compilation_config"]["cudagraph_capture_sizes"][:2] == [32, 64]


def test_one_without_drafts_has_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "compilation_config" not in arguments(monkeypatch, cpu=False, method="none")


def test_on_a_cpu_drafts_have_the_length_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = arguments(monkeypatch, cpu=True)
    assert made["speculative_config"]["num_speculative_tokens"] == 32
    assert "compilation_config" not in made
