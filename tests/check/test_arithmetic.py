from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhymed.check import arithmetic
from rhymed.core.config import Config
from rhymed_broker.plan import Plan
from rhymed_workers.trainer.policy.grades import Grade
from rhymed_workers.trainer.policy.packing import Sequences, micro_batches


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


def passes(settings: Config, prompt_length: int, grade: Grade) -> list[tuple[int, int, int]]:
    """(rows, tokens of the longest, tokens) of every pass, from the trainer's packing of a step at full length."""
    rollout, rows = settings.rollout, []
    prompts = [np.full(prompt_length, number) for number in range(rollout.prompts_per_step)]
    response = np.zeros(rollout.max_response_length)
    samples = [Sequences(prompt, response) for prompt in prompts for _ in range(rollout.group_size)]
    for part in np.array_split(np.arange(len(samples)), settings.trainer.minibatches):
        for one in micro_batches(samples, list(part), settings.trainer.micro_tokens, grade=grade):
            rows.append((len(one.bounds), max(bound[-1] - bound[0] for bound in one.bounds), one.tokens))
    return rows


@given(
    prompts=st.integers(1, 5),
    group=st.integers(2, 6),
    prompt_length=st.integers(1, 60),
    response_length=st.integers(1, 400),
    micro_tokens=st.integers(16, 3000),
    split=st.booleans(),
    grade=st.sampled_from(Grade),
)
@settings(max_examples=60, deadline=None)
def test_passes_are_those_of_the_trainer(
    prompts: int, group: int, prompt_length: int, response_length: int, micro_tokens: int, split: bool, grade: Grade
) -> None:
    made = config(
        rollout={"prompts_per_step": prompts, "group_size": group, "max_response_length": response_length},
        trainer={"micro_tokens": micro_tokens, "minibatches": prompts * group if split else 1},
    )
    real = passes(made, prompt_length, grade)
    packed = arithmetic.packed(made.rollout, made.trainer, prompt_length, grade)
    assert [(len(rows), max(rows), sum(rows)) for rows in packed] == real


@given(rows=st.integers(1, 40), per_step=st.integers(1, 40), epochs=st.integers(1, 4), steps=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_steps_are_those_of_the_plan(rows: int, per_step: int, epochs: int, steps: int) -> None:
    rows = max(rows, per_step)
    plan = Plan([f"{number:016x}" for number in range(rows)], per_step, 2, epochs, steps or None)
    made = config(
        rollout={"prompts_per_step": per_step}, trainer={"epochs": epochs, "steps": steps or None}, data={"size": 40}
    )
    assert arithmetic.workload(made.rollout, made.trainer, rows, 10).steps == plan.steps


def texts(settings: Config, prompts: int, held_out: list[int]) -> tuple[dict[str, str], list[str]]:
    load = arithmetic.workload(settings.rollout, settings.trainer, prompts, 20)
    section = arithmetic.describe(settings, load, held_out)
    return dict(section.rows), section.warnings


def test_the_numbers_are_reported_in_words() -> None:
    made = config(
        rollout={"prompts_per_step": 8, "group_size": 4, "max_response_length": 100, "max_concurrency": 16},
        trainer={"epochs": 3, "minibatches": 2, "warmup_steps": 20},
        schedule={"max_staleness": 1},
        eval={"every": 4, "samples": 2, "datasets": [{"name": "a"}]},
    )
    rows, warnings = texts(made, 20, [10])
    assert rows["steps"] == "20 prompts, 8 per step, 3 epochs: 7 steps"
    assert rows["samples"] == ("8 prompts x 4 (group_size) = 32 per step, 224 in all, at most 22,400 response tokens")
    assert rows["training"] == (
        "2 optimizer steps per step, on 16 samples each; at most 2 passes, the largest of 1,680 tokens"
        " (trainer.micro_tokens = 4,096)"
    )
    assert rows["evaluation"] == "10 prompts x 2 = 20 responses, 3 times: 60, 27% of the training samples"
    assert warnings == ["trainer.warmup_steps = 20, but the run has 7 steps: trainer.lr is never reached"]


def test_groups_that_are_computed_one_by_one_share_no_pass() -> None:
    more = {"rollout": {"prompts_per_step": 8, "group_size": 4, "max_prompt_length": 56, "max_response_length": 50}}
    for overlap, passes in ((False, 2), (True, 8)):
        made = config(trainer={"micro_tokens": 1024, "overlap": overlap}, **more)
        assert arithmetic.workload(made.rollout, made.trainer, 64, 56).passes == passes


def test_what_is_replaced_is_counted() -> None:
    more = {"rollout": {"prompts_per_step": 8, "group_size": 4}}
    sampling = config(trainer={"dynamic_sampling": {"enabled": True, "max_refills": 1.5}}, **more)
    assert "384 in all, with those of replaced groups at most 960, at" in texts(sampling, 20, [])[0]["samples"]
    few = texts(sampling, 11, [])[0]["samples"]
    assert "192 in all, with those of replaced groups at most 264" in few, "the dataset has no others"
    for trainer, replaces in (({}, False), ({"algorithm": "dapo"}, True)):
        assert ("replaced" in texts(config(trainer=trainer, **more), 20, [])[0]["samples"]) == replaces
    off = {"algorithm": "dapo", "dynamic_sampling": {"enabled": False}}
    assert "replaced" not in texts(config(trainer=off, **more), 20, [])[0]["samples"]


def test_what_does_not_fit_together_is_a_warning() -> None:
    made = config(
        rollout={
            "prompts_per_step": 2,
            "group_size": 2,
            "max_prompt_length": 900,
            "max_response_length": 900,
            "workers": 5,
        },
        trainer={"micro_tokens": 1024},
    )
    _, warnings = texts(made, 64, [])
    assert "(max_prompt_length + max_response_length = 1800)" in warnings[0]
    assert "rollout.workers = 5, but a step has 4 samples" in warnings[1]


@pytest.mark.parametrize(
    ("rollout", "trainer", "reported"),
    [
        ({"top_p": 0.8, "sampler": "vllm"}, {}, "trainer.correction weights each token by too little"),
        ({"top_k": 2, "sampler": "vllm"}, {}, "rollout.top_k = 2 with rollout.sampler = 'vllm': "),
        ({"top_k": 2, "min_p": 0.1, "runner": "v2"}, {}, ""),
        ({"top_p": 0.8, "sampler": "vllm"}, {"algorithm": "dppo"}, "trainer.loss weights each token"),
        ({"top_p": 0.8, "sampler": "vllm"}, {"correction": "none"}, ""),
        ({"top_p": 0.8, "min_p": 0.1}, {"algorithm": "dppo"}, ""),
        ({"temperature": 0.6}, {}, ""),
    ],
)
def test_settings_that_make_the_numbers_wrong_are_reported(
    rollout: dict[str, Any], trainer: dict[str, Any], reported: str
) -> None:
    _, warnings = texts(Config.model_validate({"rollout": rollout, "trainer": trainer}), 64, [])
    assert [reported in warning for warning in warnings] == [True] * bool(reported)
