"""The configuration of drafts as the plug-in in the engine reads it, and the environment that an engine leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import EngineError
from rhymed.histospec.settings import Settings, read_settings
from rhymed.histospec.versions import RUNNER, RUNNERS
from rhymed_workers.engines import launch
from rhymed_workers.engines.launch import (
    BATCH_INVARIANT,
    CPU_ENVIRONMENT,
    LOGGING,
    _speculation,
    arguments,
    end_children,
    environment,
    is_recurrent,
    supported,
    take_runner,
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


def test_the_second_model_runner_gets_the_drafter_by_a_method_that_it_knows() -> None:
    drafts = Config().drafts
    made = [_speculation(drafts, keyed=True, runner=one)["speculative_config"] for one in ("v1", "v2")]
    assert [one["method"] for one in made] == ["custom_class", "ngram"]
    assert made[0]["model"] == made[1]["model"]


@pytest.mark.parametrize(("longest", "depth", "width"), [(32, 3, 33), (32, 4, 32), (2, 5, 5)])
def test_a_head_of_vllm_keeps_its_configuration_and_history_may_draft_more(
    longest: int, depth: int, width: int
) -> None:
    own = {"method": "eagle3", "model": "head", "num_speculative_tokens": depth}
    drafts = Config().drafts.model_copy(update={"method": "history+engine", "max_length": longest})
    made = _speculation(drafts, keyed=True, runner="v2", own=own)
    assert made["speculative_config"] == own | {"num_speculative_tokens": width}
    assert read_settings(made["additional_config"]).engine == depth


TAKEN = [  # rollout.runner, the environment's, the run's, version, Triton; the runner, or words of the error
    ("auto", "", "", "0.32.0", True, "v1"),
    ("auto", "1", "", "0.32.0", True, "v2"),
    ("v2", "", "", "0.33.0", True, "v2"),
    ("auto", "", "", "0.32.0", False, "v1"),
    ("auto", "", "", "0.26.0", True, "v1"),
    ("auto", "0", "", "0.32.0", True, "v1"),
    ("auto", "1", "", "0.26.0", True, "has no model runner V2 that rhymed knows"),
    ("v1", "", "", "0.33.0", True, "v1"),
    ("v2", "", "", "0.33.0", False, "needs Triton with a backend for this device: set rollout.runner"),
    ("auto", "", "v1", "0.33.0", True, "v1"),
    ("v2", "", "v1", "0.33.0", True, "v1"),
    ("v1", "", "v2", "0.33.0", True, "v2"),
    ("auto", "", "v2", "0.33.0", False, "the run began with model runner V2, but"),
]


@pytest.mark.parametrize(("asked", "chosen", "kept", "version", "triton", "expected"), TAKEN)
def test_an_engine_takes_the_runner_that_can_be_had_and_a_run_keeps_it(
    asked: str,
    chosen: str,
    kept: str,
    version: str,
    triton: bool,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
    monkeypatch.setitem(sys.modules, "vllm.triton_utils", SimpleNamespace(HAS_TRITON=triton))
    monkeypatch.setenv(RUNNER, chosen)
    folder = tmp_path / "kept"
    folder.mkdir()
    if kept:
        (folder / launch.KEPT).write_text(kept)
    config = Config.model_validate({"run": {"folder": str(tmp_path), "name": "kept"}, "rollout": {"runner": asked}})
    if expected not in ("v1", "v2"):
        with pytest.raises(EngineError, match=expected):
            take_runner(config)
        return
    assert take_runner(config) == expected
    assert os.environ[RUNNER] == RUNNERS[expected]
    monkeypatch.setenv(RUNNER, "")
    assert take_runner(config) == expected, "the folder has it"


def test_without_keyed_sampling_and_drafts_vllm_chooses_the_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.26.0"))
    monkeypatch.setitem(sys.modules, "vllm.triton_utils", SimpleNamespace(HAS_TRITON=False))
    monkeypatch.setenv(RUNNER, "1")
    tree = {"run": {"folder": str(tmp_path)}, "rollout": {"sampler": "vllm"}, "drafts": {"method": "none"}}
    assert take_runner(Config.model_validate(tree)) == ""
    assert os.environ[RUNNER] == "1"


def test_the_first_model_runner_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
@pytest.mark.thorough
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


def test_on_a_cpu_a_model_that_carries_a_state_has_neither_drafts_nor_cached_prefixes(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM 0.32 dies when it takes a state back there, and caches states only if prompts may be cut into chunks."""
    from transformers import Lfm2Config

    kinds = ["conv", "full_attention"]
    Lfm2Config(num_hidden_layers=2, layer_types=kinds, hidden_size=64).save_pretrained(tmp_path / "lfm2")
    config = Config.model_validate({"drafts": {"method": "history"}})
    for folder, carries in ((tmp_path / "lfm2", True), (tiny_model, False)):
        assert is_recurrent(folder) is carries
        found = supported(config, folder)
        assert found.drafts.method == ("none" if carries else "history")
        assert arguments(found, folder)["enable_prefix_caching"] is not carries
        assert ("speculative_config" in arguments(found, folder)) is not carries
        assert found.rollout.sampler == "keyed"
    head = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    owned = {"rollout": {"runner": "v2", "engine_args": head}, "drafts": {"method": "history+engine"}}
    found = supported(Config.model_validate(owned), tmp_path / "lfm2")
    assert "speculative_config" not in arguments(found, tmp_path / "lfm2", "v2"), "the engine's own head is off, too"
    assert [record.getMessage().partition(":")[0] for record in caplog.records].count("drafts are off") == 2
