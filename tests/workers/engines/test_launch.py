"""The configuration of drafts as the plug-in in the engine reads it, and the environment that an engine leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.histospec.settings import Settings, read_settings
from rhymed.histospec.versions import RUNNER
from rhymed_workers.engines.launch import CPU_ENVIRONMENT, LOGGING, _speculation, end_children, environment


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


def test_the_device_is_what_vllm_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor's engine on a host with a GPU is still a processor's engine."""
    from vllm.platforms import current_platform

    for cpu in (True, False):
        monkeypatch.setattr(type(current_platform), "is_cpu", lambda self, cpu=cpu: cpu)
        drop = {LOGGING, *CPU_ENVIRONMENT}
        monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in drop})
        environment()
        assert {name: os.environ.get(name) for name in CPU_ENVIRONMENT} == (
            CPU_ENVIRONMENT if cpu else dict.fromkeys(CPU_ENVIRONMENT)
        )
        end_children()


def test_what_a_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, LOGGING: "/somewhere/mine.json"})
    environment()
    end_children()
    assert os.environ[LOGGING] == "/somewhere/mine.json"
