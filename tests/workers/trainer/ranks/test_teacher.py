"""Several ranks learn from a teacher what one learns. Real processes over gloo."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainer.ranks.forked import Job, train
from tests.workers.trainer.ranks.test_ranks import config, furthest, untimed, weights
from tests.workers.trainer.teacher.servers import TeacherServer, serving

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

LORA = {"rank": 3, "alpha": 8}
SHOWN = {"system": "Think of the teacher."}


@pytest.fixture(scope="module")
def teacher_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(tiny_model, folder)
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def taught(model: Path, teacher: dict[str, Any], algorithm: str = "opd", **trainer: Any) -> dict[str, Any]:
    return config(model, algorithm=algorithm, teacher=teacher, warmup_steps=0, **trainer)


def agree(one: Job, *others: Job) -> None:
    """In weights as far as ranks do, and in what they report."""
    for other in others:
        assert furthest(weights(one.out), weights(other.out)) < 1e-6
        for mine, theirs in zip(one.metrics, other.metrics, strict=True):
            assert untimed(theirs) == pytest.approx(untimed(mine), rel=1e-4, abs=1e-6)


@pytest.mark.thorough
def test_two_ranks_share_a_teacher_and_learn_what_one_does(
    tiny_model: Path, teacher_model: Path, tmp_path: Path
) -> None:
    given = taught(tiny_model, {"model": str(teacher_model), "divergence": "mixed", **SHOWN}, kl_coef=0.1)
    one, two = train([Job(ranks, given, f"{tmp_path}/{ranks}", last=2) for ranks in (1, 2)])
    assert furthest(weights(one.out), weights(tiny_model)) > 1e-4, "it was trained"
    assert one.metrics[0]["distill/divergence"] > 0.01
    agree(one, two)


@pytest.mark.thorough
def test_one_two_and_four_ranks_have_the_same_weights_after_ten_steps(
    tiny_model: Path, teacher_model: Path, tmp_path: Path
) -> None:
    settings = taught(tiny_model, {"model": str(teacher_model), "divergence": "reverse"})
    one, two, four = train([Job(ranks, settings, f"{tmp_path}/{ranks}", last=10) for ranks in (1, 2, 4)])
    assert one.metrics[-1]["distill/divergence"] != 0
    agree(one, two, four)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "given", "trainer"),
    [
        ("opd", {"divergence": "reverse"}, {"minibatches": 3}),
        ("opd", {"divergence": "forward"}, {}),
        ("grpo", {"divergence": "mixed"}, {"gradient_checkpointing": True}),
        ("ppo", {"divergence": "reverse"}, {}),
        ("opsd", SHOWN, {}),
        ("opsd", {**SHOWN, "over": "vocabulary"}, {}),
        ("opsd", {**SHOWN, "weights": "initial", "divergence": "forward"}, {"minibatches": 2}),
        (
            "opsd",
            {**SHOWN, "weights": "initial", "over": "vocabulary"},
            {"lora": {"rank": 3, "alpha": 8}, "lr": 1e-3},
        ),
    ],
)
def test_two_ranks_have_the_weights_of_one_after_three_steps(
    tiny_model: Path,
    teacher_model: Path,
    tmp_path: Path,
    algorithm: str,
    given: dict[str, Any],
    trainer: dict[str, Any],
) -> None:
    teacher = given if algorithm == "opsd" else {"model": str(teacher_model), **given}
    settings = taught(tiny_model, teacher, algorithm, **trainer)
    one, two = train([Job(ranks, settings, f"{tmp_path}/{ranks}", last=3) for ranks in (1, 2)])
    assert one.metrics[-1]["distill/divergence"] != 0
    agree(one, two)


@pytest.mark.thorough
@pytest.mark.parametrize("form", [{}, {"divergence": "forward", "topk": 5}], ids=["sampled", "topk"])
def test_a_server_is_asked_once_for_all_ranks(tiny_model: Path, tmp_path: Path, form: dict[str, Any]) -> None:
    from rhymed.core.config import Config
    from rhymed.inputs.models import resolve_model
    from rhymed.inputs.render import load_tokenizer

    settings = Config.model_validate(config(tiny_model))
    tokenizer = load_tokenizer(settings.model, resolve_model(settings))
    server = TeacherServer(lambda text: tokenizer(text, add_special_tokens=False).input_ids)
    with serving(server) as url:
        given, asked = taught(tiny_model, {"url": url, **form}), []
        done = []
        for ranks in (1, 2):
            done += train([Job(ranks, given, f"{tmp_path}/{ranks}", last=3)])
            asked.append(len(server.asked))
    agree(*done)
    assert asked[1] == 2 * asked[0], "as many requests from two ranks as from one"


@pytest.mark.thorough
def test_a_repetition_and_a_resume_have_the_same_bits(tiny_model: Path, teacher_model: Path, tmp_path: Path) -> None:
    given = taught(tiny_model, {"model": str(teacher_model), "divergence": "mixed"})
    straight, again, _, after = train(
        [
            Job(2, given, f"{tmp_path}/straight", last=4),
            Job(2, given, f"{tmp_path}/again", last=4),
            Job(2, given, f"{tmp_path}/early", last=2),
            Job(2, given, f"{tmp_path}/after", start=f"{tmp_path}/early", first=2, last=4),
        ]
    )
    assert furthest(weights(straight.out), weights(again.out)) == 0
    assert furthest(weights(straight.out), weights(after.out)) == 0
    assert [untimed(step) for step in after.metrics] == [untimed(step) for step in straight.metrics[2:]]
