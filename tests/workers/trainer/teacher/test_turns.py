"""Distillation of samples in turns: only the policy's tokens are taught, each in the row that it was written in."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed.inputs.models import resolve_model
from rhymed.inputs.render import load_tokenizer
from rhymed.inputs.rows import prompt_id
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.policy import Policy
from tests.workers.trainer.sessions import chosen, distributions, rows, sessions, written
from tests.workers.trainer.teacher import test_distillation as distillations
from tests.workers.trainer.teacher.servers import TeacherServer, serving
from tests.workers.trainer.teacher.test_distillation import ROWS, plain
from tests.workers.trainer.test_learner import changed

teacher_model = distillations.teacher_model
Given = list[StoredSample]


def tokenizer_of(config: Config) -> Any:
    return load_tokenizer(config.model, resolve_model(config))


def settings(model: Path, algorithm: str, teacher: dict[str, Any], micro_tokens: int = 60) -> Config:
    trainer = {"micro_tokens": micro_tokens, "threads": 1, "minibatches": 1, "teacher": teacher}
    rollout = {"max_prompt_length": 64, "max_response_length": 16, "prompts_per_step": 3, "group_size": 4}
    tree = {"model": {"path": str(model)}, "rollout": rollout, "trainer": {"algorithm": algorithm, **trainer}}
    return Config.model_validate(tree)


@pytest.fixture
def given(tiny_model: Path) -> Given:
    """With the policy's own log-probs, and rows for prompts that only the teacher reads."""
    found = []
    model = plain(Policy.load(tiny_model))
    for sample in sessions(0):
        with torch.no_grad():
            logprobs = np.zeros(sample.info.length, np.float32)
            logprobs[written(sample.info)] = chosen(*distributions(model, [sample])).numpy()
        row = ROWS[int(sample.info.id.prompt) % 2]
        id = SampleId(0, prompt_id(row), sample.info.id.index + 4 * int(sample.info.id.prompt))
        found.append(dataclasses.replace(changed(sample, id=id), row=row, logprobs=logprobs))
    return found


def shown(learner: TorchLearner, given: Given) -> list[list[int]] | None:
    assert learner._distillation is not None
    render = learner._distillation._prompts._render
    return None if render is None else [list(render("row", sample.row)) for sample in given]  # type: ignore[arg-type]


THOROUGH = partial(pytest.param, marks=pytest.mark.thorough)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("opd", {}),
    ("opd", {"over": "vocabulary"}),
    ("opd", {"divergence": "forward"}),
    ("opsd", {"system": "Be brief."}),
    ("opsd", {"demonstration": "answer", "over": "vocabulary"}),
]


@pytest.mark.parametrize("micro_tokens", [THOROUGH(1), 60, THOROUGH(4096)])
@pytest.mark.parametrize(("algorithm", "teacher"), CASES, ids=str)
def test_divergence_and_gradient_are_those_of_separate_rows(
    tiny_model: Path, teacher_model: Path, given: Given, algorithm: str, teacher: dict[str, Any], micro_tokens: int
) -> None:
    named = {"model": str(teacher_model)} if algorithm == "opd" else {}
    learner = TorchLearner.restore(settings(tiny_model, algorithm, named | teacher, micro_tokens), None)
    model, other = plain(learner.policy), plain(Policy.load(teacher_model if named else tiny_model))
    gradients: dict[str, Tensor] = {}

    def keep(loss: float, sums: Any) -> None:
        for name, parameter in learner.policy.model.named_parameters():
            gradients[name] = parameter.grad.clone() if parameter.grad is not None else torch.zeros_like(parameter)

    learner._optimize = keep  # type: ignore[method-assign]
    found = learner.train(given)
    logp_NV, target_N = distributions(model, given)
    with torch.no_grad():
        logq_NV, _ = distributions(other, given, shown(learner, given))
    if "over" in teacher:
        value = (logp_NV.exp() * (logp_NV - logq_NV)).sum(-1).mean()
        loss = value
    elif "divergence" in teacher:
        value = loss = (logq_NV.exp() * (logq_NV - logp_NV)).sum(-1).mean()
    else:
        logp_N = chosen(logp_NV, target_N)
        gain_N = (chosen(logq_NV, target_N) - logp_N).detach()
        value, loss = -gain_N.mean(), -(gain_N * logp_N).mean()
    loss.backward()
    assert found["distill/divergence"] == pytest.approx(value.item(), rel=1e-4)
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, atol=3e-6), name


def test_a_server_is_asked_about_rows_and_learned_from_for_the_policys_tokens(
    tiny_model: Path, teacher_model: Path, given: Given
) -> None:
    teacher = plain(Policy.load(teacher_model))

    def score(tokens: list[int]) -> Any:
        with torch.no_grad():
            return teacher(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1).tolist()

    tokenizer = tokenizer_of(settings(tiny_model, "opd", {"model": str(teacher_model)}))
    server = TeacherServer(lambda text: tokenizer(text, add_special_tokens=False).input_ids, score=score)
    with serving(server) as url:
        for kind in ({}, {"divergence": "forward", "topk": 264}):
            near = {"model": str(teacher_model), **{key: kind[key] for key in kind if key != "topk"}}
            there = TorchLearner.restore(settings(tiny_model, "opd", {"url": url, **kind}), None)
            here = TorchLearner.restore(settings(tiny_model, "opd", near), None)
            far, close = there.train(given), here.train(given)
            assert far["distill/divergence"] == pytest.approx(close["distill/divergence"], rel=1e-4)
            assert far["actor/grad_norm"] == pytest.approx(close["actor/grad_norm"], rel=1e-4)
    asked = [body["prompt"] for body in server.asked if isinstance(body["prompt"], list)]
    for sample in given:
        assert all(asked.count(tokens) == 2 for tokens, _ in rows(sample))
