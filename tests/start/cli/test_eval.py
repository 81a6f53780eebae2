"""What `rhymed eval` makes of its arguments; whole evaluations are in tests/system/test_loop.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rhymed.core.config import Config, Lora
from rhymed.core.errors import ConfigError
from rhymed.core.run import checkpoint
from rhymed.core.run.layout import layout_of
from rhymed.start.cli import main
from rhymed.start.cli.eval import evaluating


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "mine", "folder": str(tmp_path)},
            "net": {"broker": "tcp://127.0.0.1:5550"},
            "trainer": {"kl_coef": 0.1, "warmup_steps": 2},
            "eval": {"datasets": [{"name": "test", "path": "test.jsonl"}], "every": 7, "at_start": False},
        }
    )


def test_an_evaluation_is_a_run_that_trains_nothing_in_a_folder_of_its_own(config: Config) -> None:
    made = evaluating(config, "")
    assert (made.trainer.steps, made.eval.every, made.eval.at_start) == (0, 1, True)
    assert layout_of(made).folder == layout_of(config).folder / "eval" / "base"
    assert layout_of(made).broker.startswith("ipc://")  # not the living run's
    assert made.trainer.recipe.kl_coef == 0  # no reference model is loaded


@pytest.mark.parametrize(
    "trained", [{"algorithm": "sft"}, {"algorithm": "opsd", "teacher": {"system": "Be brief.", "weights": "initial"}}]
)
def test_a_run_without_rewards_is_evaluated_by_its_own_words(config: Config, trained: dict[str, object]) -> None:
    """The engine generates, no teacher is asked, and samples may be compared again."""
    tree = json.loads(config.model_dump_json(exclude_defaults=True))
    column = {"answer_column": "answer"} if trained["algorithm"] == "sft" else {}
    tree |= {"trainer": trained, "data": column, "eval": {"datasets": tree["eval"]["datasets"]}}
    made = evaluating(Config.model_validate(tree), "")
    assert (made.rollout.engine, made.trainer.teacher.used, made.data.answer_column) == ("vllm", False, "")


def test_a_checkpoint_by_number_latest_or_folder(config: Config) -> None:
    folder = layout_of(config).checkpoints
    for step in (2, 4):
        checkpoint.save(folder, step, lambda made: (made / "config.json").touch() or None, keep=5)
    assert evaluating(config, "latest").model.path == str(folder / "step-000004")
    assert evaluating(config, "2").model.path == str(folder / "step-000002")
    assert evaluating(config, str(folder / "step-000002")).run.name == "step-000002"


@pytest.mark.parametrize(
    ("which", "reported"),
    [("3", "steps there: 2"), ("latest", "steps there: none"), ("lastest", "neither latest, nor")],
)
def test_a_checkpoint_that_is_not_there(config: Config, which: str, reported: str) -> None:
    if which == "3":
        checkpoint.save(layout_of(config).checkpoints, 2, lambda made: (made / "config.json").touch() or None, keep=5)
    with pytest.raises(ConfigError, match=reported):
        evaluating(config, which)


def test_without_held_out_prompts_it_says_what_to_add(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("")
    assert main(["eval", str(file)]) == 2
    assert "add [[eval.datasets]]" in capsys.readouterr().err


def test_held_out_prompts_are_asked_as_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.json"
    held_out = {"name": "test", "path": "test.jsonl", "system": "Think."}
    file.write_text(json.dumps({"data": {"system": "Be brief."}, "eval": {"datasets": [held_out]}}))
    assert main(["eval", str(file)]) == 2
    assert "system must equal data.system" in capsys.readouterr().err


def test_an_adapter_is_merged_into_the_run_s_model(config: Config, tmp_path: Path) -> None:
    """Of this run or of another program, whatever the configuration says; without one, the model is evaluated."""
    safetensors = pytest.importorskip("safetensors.numpy")

    def write(made: Path) -> None:
        settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["q_proj"]}
        (made / "adapter_config.json").write_text(json.dumps(settings))
        names = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight" for part in "AB"]
        safetensors.save_file(
            {name: np.zeros((2, 2), np.float32) for name in names}, made / "adapter_model.safetensors"
        )

    saved = checkpoint.save(layout_of(config).checkpoints, 2, write, keep=5).folder
    for which in ("latest", str(saved)):
        made = evaluating(config, which)
        assert made.model.path == config.model.path
        assert made.trainer.lora == Lora(
            rank=2, alpha=3, targets=["model.layers.0.self_attn.q_proj"], adapter=str(saved)
        )
    trained = config.model_copy(update={"trainer": config.trainer.model_copy(update={"lora": Lora()})})
    assert evaluating(trained, "").trainer.lora is None
