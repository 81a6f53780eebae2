"""What `rhymed check` advises is enough: with every change that it names, the same error does not come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rhymed.check.devices import cures
from rhymed.config import Config
from tests.check.devices.test_devices import check


def told(cure: str) -> dict[str, Any]:
    """The settings of one cure, in the words of a configuration: `lower trainer.micro_tokens to 4096 and ...`."""
    tree: dict[str, Any] = {}
    for clause in cure.split(" and "):
        words = clause.split()
        value: Any
        if clause == "train adapters only ([trainer.lora])":
            setting, value = "trainer.lora", {}
        elif clause.startswith("train on"):
            setting, value = "trainer.gpus", int(words[2])
        else:
            [setting] = [word for word in words if "." in word and word[0].isalpha()]
            value = words[-1].strip("'") if "'" in words[-1] else json.loads(words[-1])
        section, name = setting.split(".")
        tree.setdefault(section, {})[name] = value
    return tree


def merged(sections: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {name: {**sections.get(name, {}), **more.get(name, {})} for name in {**sections, **more}}


@pytest.mark.parametrize(
    ("gpus", "model", "sections", "about", "first"),
    [
        ("8x A100 40GB", "7b", {"trainer": {"gpus": 4, "micro_tokens": 16384}}, "the trainer needs", "train on 8"),
        ("8x H100 80GB", "7b", {"trainer": {"gpus": 1}}, "the trainer needs", "train on 2 GPUs"),
        (
            "8x A100 40GB",
            "7b",
            {"trainer": {"gpus": 8, "micro_tokens": 65536}},
            "the trainer needs",
            "lower trainer.mi",
        ),
        (
            "8x A100 40GB",
            "7b",
            {"trainer": {"gpus": 8}, "rollout": {"max_response_length": 60_000}},
            "the trainer needs",
            "lower rollout.max_response_length",
        ),
        (
            "1x L4 24GB",
            "1.5b",
            {"trainer": {"lora": {}, "micro_tokens": 1 << 18}, "rollout": {"prompts_per_step": 64}},
            "the trainer needs",
            "lower trainer.micro_tokens to 65536",
        ),
        ("8x L4 24GB", "7b", {"rollout": {"gpu_memory": 0.5}}, "the model does not fit", "raise rollout.gpu_memory"),
        ("8x H100 80GB", "70b", {}, "the model does not fit", "raise rollout.tensor_parallel to 2"),
        ("1x H100 80GB", "1.5b", {"schedule": {"colocate": True}}, "schedule.colocate", "set it to at most"),
        (
            "8x H100 80GB",
            "7b",
            {"rollout": {"max_response_length": 1_000_000, "gpu_memory": 0.4}},
            "the KV cache of",
            "raise rollout.gpu_memory",
        ),
    ],
)
def test_every_cure_is_enough(gpus: str, model: str, sections: dict[str, Any], about: str, first: str) -> None:
    name = {"1.5b": "qwen2.5-1.5b", "7b": "qwen2.5-7b", "70b": "llama-3.3-70b"}[model]
    (error,) = (error for error in check(gpus, name, **sections).errors if error.startswith(about))
    advised = error.rpartition(": ")[2].split(", or ")
    assert advised[0].startswith(first), error
    for cure in advised:
        changes = told(cure.replace("set it to at most", "set rollout.gpu_memory to"))
        again = check(gpus, name, **merged(sections, changes)).errors
        assert not [error for error in again if error.startswith(about)], cure


def test_settings_that_do_not_suffice_alone_are_combined() -> None:
    errors = check("1x L4 24GB", "qwen2.5-7b", trainer={"micro_tokens": 65536}).errors
    (error,) = (error for error in errors if error.startswith("the trainer needs"))
    assert " and " in error
    changes = told(error.rpartition(": ")[2])
    again = check("1x L4 24GB", "qwen2.5-7b", **merged({"trainer": {"micro_tokens": 65536}}, changes)).errors
    assert not [error for error in again if error.startswith("the trainer needs")]


def test_what_no_setting_cures_says_so() -> None:
    errors = check("1x GTX 1GB", "llama-3.3-70b").errors
    assert [error for error in errors if error.endswith(cures.NOTHING)], errors


def test_settings_stay_within_what_a_run_keeps() -> None:
    config = Config.model_validate({"rollout": {"max_response_length": 1000, "max_prompt_length": 24}})
    lengths = [after.rollout.max_response_length for _, after in cures.shorter_responses(config)]
    assert lengths == [500, 256]
    assert [after.trainer.micro_tokens for _, after in cures.smaller_passes(config)] == [2048, 1024]
    assert [after.trainer.world for _, after in cures.more_ranks(config)][:3] == [2, 4, 8]
