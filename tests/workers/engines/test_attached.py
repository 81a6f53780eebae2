"""An engine that lacks what was asked for is an error in words, with a cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import EngineError
from rhymed.histospec.versions import RUNNER
from rhymed_workers.engines.launch import BATCH_INVARIANT, attachment_problem, environment_problem
from rhymed_workers.engines.vllm import VllmEngine
from tests.workers.engines import standin

GOOD = {"keyed": True, "drafter": True, "refused": [], "why": ""}
SECOND = {
    "keyed": False,
    "drafter": None,
    "refused": [],
    "why": "vLLM has chosen the model runner vllm.v1.worker.gpu.Runner",
}
PIPELINE = {"keyed": True, "drafter": None, "refused": [], "why": ""}  # only the last stage of a pipeline drafts


@pytest.mark.parametrize("ranks", [[GOOD], [GOOD, GOOD], [PIPELINE, GOOD]])
def test_all_is_there(ranks: list[dict[str, object]]) -> None:
    assert attachment_problem(ranks, keyed=True, drafts=True) == ""


def test_nothing_is_missing_that_was_not_asked_for() -> None:
    assert attachment_problem([SECOND], keyed=False, drafts=False) == ""
    assert attachment_problem([PIPELINE], keyed=True, drafts=False) == ""


@pytest.mark.parametrize("ranks", [[SECOND], [GOOD, SECOND], []])
def test_one_process_that_samples_without_keys_is_enough(ranks: list[dict[str, object]]) -> None:
    message = attachment_problem(ranks, keyed=True, drafts=True)
    assert 'rollout.sampler = "keyed"' in message
    assert "install vLLM 0.26, 0.32, 0.33" in message
    assert ("model runner vllm.v1.worker.gpu" in message) == bool(ranks)


def test_nobody_drafts() -> None:
    message = attachment_problem([PIPELINE], keyed=True, drafts=True)
    assert 'drafts.method = "history"' in message
    assert "something else" in message


def test_logits_processors_that_keep_keys_away_are_an_error() -> None:
    """vLLM would sample every batch, and ours only log that."""
    refused = {**GOOD, "refused": ["Custom"]}
    message = attachment_problem([GOOD, refused], keyed=True, drafts=True)
    assert message.startswith('rollout.sampler = "keyed", but it is not possible with the logits processors Custom:')
    assert attachment_problem([refused], keyed=False, drafts=True) == ""


@pytest.mark.parametrize(("chosen", "wrong"), [("", False), ("0", False), ("1", True), ("7", True)])
def test_an_environment_with_the_other_model_runner_is_refused_before_the_start(chosen: str, wrong: bool) -> None:
    given = {RUNNER: chosen} if chosen else {}
    message = environment_problem(given, runner="v1", exact="tokens")
    assert bool(message) is wrong
    assert not wrong or f"{RUNNER}={chosen} is set" in message
    assert environment_problem(given, runner="auto", exact="tokens") == ""


def test_an_environment_that_takes_exactness_back_is_refused() -> None:
    given = {BATCH_INVARIANT: "0"}
    assert "rollout.exact = 'tokens' needs" in environment_problem(given, runner="v1", exact="tokens")
    assert environment_problem(given, runner="v1", exact="distribution") == ""
    assert environment_problem({BATCH_INVARIANT: "1"}, runner="v1", exact="tokens") == ""


def engine_of(model: Path, **rollout: str) -> VllmEngine:
    return VllmEngine(Config.model_validate({"rollout": rollout}), model)


@pytest.mark.parametrize("release", standin.RELEASES)
async def test_an_engine_without_keyed_sampling_does_not_open(
    release: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.install(release, monkeypatch)
    llm = standin.Llm(release, 0)
    llm.answers = [SECOND]
    engine = engine_of(tiny_model)
    monkeypatch.setattr(engine, "_start", lambda: llm)
    with pytest.raises(EngineError, match=r"does not sample with keys: vLLM has chosen.*or set rollout"):
        await engine.open()
    llm.answers = [GOOD]
    await engine.open()
    await engine.close()
    assert llm.called == ["collective_rpc", "collective_rpc", "shutdown"]
    llm.close()


async def test_the_other_model_runner_is_refused_before_vllm_is_imported(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNNER, "1")
    monkeypatch.setattr("rhymed_workers.engines.vllm.environment", None)
    engine = engine_of(tiny_model, runner="v1")
    with pytest.raises(EngineError, match=f"{RUNNER}=1 is set, but rollout.runner = 'v1'"):
        await engine.open()
    await engine.close()


async def test_an_unknown_release_is_refused_before_the_engine_starts(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.install("0.33", monkeypatch)
    monkeypatch.setattr("vllm.__version__", "0.35.0")
    monkeypatch.setattr("rhymed_workers.engines.vllm.environment", lambda **_: None)
    engine = engine_of(tiny_model)
    with pytest.raises(EngineError, match=r"vLLM 0\.35\.0 is unknown to rhymed"):
        await engine.open()
    await engine.close()
