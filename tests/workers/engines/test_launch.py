"""The configuration of drafts as the plug-in in the engine reads it, and the environment that an engine leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.histospec.settings import Settings, read_settings
from rhymed.histospec.versions import RUNNER
from rhymed_workers.engines import launch
from rhymed_workers.engines.adapter.attached import BATCH_INVARIANT
from rhymed_workers.engines.launch import (
    CPU_ENVIRONMENT,
    LOGGING,
    _speculation,
    end_children,
    environment,
)


def speculation(**sections: Any) -> dict[str, Any]:
    config = Config.model_validate(sections)
    return _speculation(config.drafts, keyed=config.rollout.sampler == "keyed")


def test_drafts_are_on_from_the_start() -> None:
    settings = speculation()
    assert settings["speculative_config"]["num_speculative_tokens"] == 32
    assert settings["speculative_config"]["model"] == "rhymed.histospec.proposer.HistoSpec"
    assert read_settings(settings["additional_config"]) == Settings()


@pytest.mark.parametrize("budget", ["rate", "aimd", "fixed"])
@pytest.mark.parametrize("matching", ["history", "paper"])
def test_every_choice_reaches_the_engine(budget: str, matching: str) -> None:
    drafts = {"budget": budget, "matching": matching, "memory_mib": 64, "max_length": 7}
    settings = speculation(drafts=drafts, rollout={"sampler": "vllm"})
    assert settings["speculative_config"]["num_speculative_tokens"] == 7
    read = read_settings(settings["additional_config"])
    assert (read.budget, read.matching, read.memory_mib, read.keyed) == (budget, matching, 64, False)


def test_plain_decoding_has_no_speculation_and_keeps_its_noise() -> None:
    settings = speculation(drafts={"method": "none"})
    assert "speculative_config" not in settings
    assert read_settings(settings["additional_config"]).keyed


@pytest.mark.parametrize(
    ("sampler", "stages", "expected"), [("keyed", 2, False), ("keyed", 1, None), ("vllm", 2, None)]
)
def test_a_pipeline_of_the_first_model_runner_is_scheduled_in_step(
    sampler: str, stages: int, expected: bool | None
) -> None:
    """vLLM 0.32 refuses anything else: `VllmConfig._get_v1_model_runner_unsupported_features`."""
    drafts = Config.model_validate({"drafts": {"method": "none"}}).drafts
    assert _speculation(drafts, keyed=sampler == "keyed", stages=stages).get("async_scheduling") is expected


def test_nothing_is_left_for_other_processes_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name != LOGGING})
    environment()
    file = Path(os.environ[LOGGING])
    assert file.exists()
    end_children()
    assert LOGGING not in os.environ
    assert not file.exists()


def test_the_first_model_runner_is_asked_for_where_ours_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, expected in ((False, None), (True, "0")):
        monkeypatch.setattr(os, "environ", {n: v for n, v in os.environ.items() if n not in (LOGGING, RUNNER)})
        environment(first_runner=wanted)
        assert os.environ.get(RUNNER) == expected
        end_children()


@pytest.mark.parametrize(
    ("version", "platform", "expected"),
    [("0.32.0+cpu", True, True), ("0.33.0", True, True), ("0.33.0", False, False)],
)
def test_the_device_is_the_one_that_vllm_chooses(
    version: str, platform: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was built for processors is a processor's, also on a host with a GPU."""
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: platform)
    monkeypatch.setattr(launch, "installed", lambda: version)
    drop = {LOGGING, *CPU_ENVIRONMENT}
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in drop})
    environment()
    chosen = {name: os.environ[name] for name in CPU_ENVIRONMENT if name in os.environ}
    assert chosen == (CPU_ENVIRONMENT if expected else {})
    end_children()


@pytest.mark.parametrize(
    ("exact", "platform", "expected"),
    [("tokens", False, "1"), ("distribution", False, None), ("tokens", True, None)],
)
def test_equal_tokens_on_a_gpu_need_kernels_that_do_not_depend_on_the_batch(
    exact: str, platform: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: platform)
    monkeypatch.setattr(launch, "installed", lambda: "0.32.0")
    drop = {LOGGING, BATCH_INVARIANT, *CPU_ENVIRONMENT}
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in drop})
    environment(exact=exact)
    assert os.environ.get(BATCH_INVARIANT) == expected
    end_children()


def test_torch_finds_its_variables_when_it_comes_with_vllm() -> None:
    """In a process of its own: whatever imports torch first, it is imported after they are set."""
    code = (
        "import os, sys; from rhymed_workers.engines import launch\n"
        "launch._set, done = (lambda values: seen.append('torch' in sys.modules) or done(values)), launch._set\n"
        "seen = []; launch.environment(); print(seen[0], 'torch' in sys.modules, os.environ['TORCHDYNAMO_DISABLE'])\n"
    )
    environ = {name: value for name, value in os.environ.items() if name not in CPU_ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=200)
    assert done.stdout.split() == ["False", "True", "1"], done.stderr


def test_what_a_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, LOGGING: "/somewhere/mine.json"})
    environment()
    end_children()
    assert os.environ[LOGGING] == "/somewhere/mine.json"
