"""Settings of teachers and of right answers: what goes together, and a sentence for what does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rhymed.core.config import Config, Teacher

URL = "http://127.0.0.1:1/v1"


def config(**sections: dict[str, Any]) -> Config:
    return Config.model_validate(sections)


def test_sft_needs_only_its_name() -> None:
    made = config(trainer={"algorithm": "sft"})
    assert (made.rollout.engine, made.rollout.group_size, made.reward.scorer) == ("dataset", 1, "none")
    scored = config(trainer={"algorithm": "sft"}, reward={"scorer": "exact"})
    assert scored.reward.scorer == "exact"
    assert config().rollout.group_size == 8


def test_a_written_configuration_is_read_again() -> None:
    for made in (config(trainer={"algorithm": "sft"}), config(trainer={"algorithm": "opd", "teacher": {"url": URL}})):
        assert Config.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"trainer": {"algorithm": "opd"}},
            "'opd' needs a teacher: set trainer.teacher.model or trainer.teacher.url",
        ),
        ({"trainer": {"algorithm": "opd", "teacher": {"system": "x"}}}, "the algorithm is 'opsd'"),
        ({"trainer": {"algorithm": "opsd", "teacher": {"model": "x"}}}, "for trainer.teacher.model or url use 'opd'"),
        ({"trainer": {"algorithm": "opsd"}}, "'opsd' needs what only the teacher is shown"),
        ({"trainer": {"algorithm": "sft", "teacher": {"model": "x"}}}, "trainer.teacher has no effect"),
        ({"trainer": {"advantage": "none"}}, "without a trainer.teacher has nothing to learn from"),
        (
            {"trainer": {"algorithm": "opd", "kl_coef": 0.1, "kl_in": "reward", "teacher": {"model": "x"}}},
            "trainer.kl_in = 'reward' has no effect",
        ),
        (
            {"trainer": {"algorithm": "opd", "overlong_cache": 0.2, "teacher": {"model": "x"}}},
            "overlong_cache is not used by algorithm = 'opd'",
        ),
        ({"trainer": {"loss": "likelihood"}}, "belongs to trainer.algorithm = 'sft'"),
        ({"reward": {"scorer": "none"}}, "'none' gives every response 0"),
        (
            {
                "trainer": {"algorithm": "gdpo", "dynamic_sampling": {"enabled": True}},
                "reward": {"scorers": [{"scorer": "math"}, {"scorer": "format"}]},
            },
            "a group with equal sums would be dropped though its parts differ",
        ),
        ({"rollout": {"engine": "dataset"}}, "rollout.engine = 'dataset' gives answers that no policy wrote"),
        ({"rollout": {"engine": "vllm"}, "trainer": {"algorithm": "sft"}}, "set rollout.engine = 'dataset'"),
        ({"rollout": {"group_size": 8}, "trainer": {"algorithm": "sft"}}, "a row has one answer"),
        ({"rollout": {"temperature": 0.7}, "trainer": {"algorithm": "sft"}}, "nothing is sampled"),
        ({"data": {"answer_column": "x"}}, "data.answer_column has no effect"),
        (
            {"trainer": {"algorithm": "sft"}, "eval": {"every": 2, "datasets": [{"name": "a", "path": "a.jsonl"}]}},
            "evaluate the checkpoints with `rhymed eval`",
        ),
        (
            {"rollout": {"temperature": 0.7}, "trainer": {"algorithm": "opd", "teacher": {"url": URL}}},
            "a server gives log-probs at temperature 1 only",
        ),
        (
            {"trainer": {"algorithm": "opsd", "minibatches": 2, "teacher": {"system": "x", "over": "vocabulary"}}},
            "needs trainer.minibatches = 1",
        ),
        ({"trainer": {"algorithm": "sft", "clip_eps_low": 0.1}}, "clip_eps_low is not used by algorithm = 'sft'"),
        ({"trainer": {"algorithm": "sft", "advantage": "return"}}, "advantage is not used by algorithm = 'sft'"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**sections)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"model": "x"}, "sampled"),
        ({"model": "x", "divergence": "forward"}, "vocabulary"),
        ({"url": URL, "divergence": "forward"}, "topk"),
        ({"model": "x", "over": "vocabulary"}, "vocabulary"),
    ],
)
def test_what_a_divergence_is_made_of(settings: dict[str, Any], tokens: str) -> None:
    assert Teacher.model_validate(settings).tokens == tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "x", "url": URL}, "model and url name two teachers"),
        ({"model": "x", "divergence": "mixed", "over": "sampled"}, "is a policy gradient of the reverse divergence"),
        ({"url": URL, "over": "vocabulary"}, "which a server does not send"),
        ({"model": "x", "divergence": "forward", "over": "topk"}, "'topk' is for url"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://me:secret@host/v1"}, "url"),
        ({"coef": 2.0}, "coef needs a teacher"),
        ({"model": "x", "beta": 0.3}, "beta needs divergence = 'mixed'"),
        ({"model": "x", "timeout_s": 3.0}, "timeout_s needs url"),
        ({"model": "x", "weights": "initial"}, "weights needs the policy as its own teacher"),
        ({"system": "x", "template": "{demonstration}"}, "template needs demonstration"),
        ({"demonstration": "x", "template": "{prompt}"}, "template must contain {demonstration}"),
    ],
)
def test_settings_of_a_teacher_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Teacher.model_validate(settings)
