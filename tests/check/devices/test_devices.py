"""`rhymed check` for each GPU: what is there, what does not fit, and what to change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rhymed.check import dryrun
from rhymed.check.devices import assumed_check
from rhymed.check.report import Report
from rhymed.check.size import size_of_model
from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError
from rhymed.histospec import versions
from rhymed.inputs import hub
from rhymed.placement import gpus

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "tests" / "data" / "models"
CONFIGS = {"1x24gb": "qwen2.5-1.5b", "1x80gb": "qwen2.5-1.5b", "8x80gb": "qwen2.5-7b", "70b": "llama-3.3-70b"}


def check(gpus: str, model: str = "qwen2.5-7b", **sections: Any) -> Report:
    tree = {"model": {"path": str(MODELS / model), "train_dtype": "bfloat16"}, **sections}
    tree["trainer"] = {"gradient_checkpointing": True, **tree.get("trainer", {})}
    return assumed_check(Config.model_validate(tree), gpus)


def rows(report: Report) -> dict[str, str]:
    return {label: text for section in report.sections for label, text in section.rows}


@pytest.mark.parametrize(
    ("model", "billions"), [("qwen2.5-1.5b", 1.54), ("qwen2.5-7b", 7.62), ("llama-3.3-70b", 70.55)]
)
def test_parameters_follow_from_the_shape(model: str, billions: float) -> None:
    assert size_of_model(MODELS / model, weights=False).parameters / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_configuration_fits_on_the_gpus_that_it_is_for(name: str) -> None:
    file = ROOT / "configs" / "gpu" / f"{name}.toml"
    assumed = re.search(r'^# rhymed check configs/gpu/\S+ --assume "(.+)"$', file.read_text(), re.MULTILINE)
    assert assumed is not None
    config = load_config(file, [f"model.path={MODELS / CONFIGS[name]}"], {})
    report = assumed_check(config, assumed[1])
    assert report.errors == []
    assert rows(report)["GPUs"] in ("1 x RTX 4090 (24 GiB)",) or "H100" in rows(report)["GPUs"]


def test_there_is_a_configuration_for_each() -> None:
    assert {file.stem for file in (ROOT / "configs" / "gpu").glob("*.toml")} == CONFIGS.keys()


def test_a_rank_has_its_part_of_the_state() -> None:
    one, four = check("8x H100 80GB", trainer={"gpus": 1}), check("8x H100 80GB", trainer={"gpus": 4})
    assert "lower trainer.micro_tokens" not in one.errors[0]
    assert "train on more GPUs (trainer.gpus, trainer.nodes)" in one.errors[0]
    assert "[trainer.lora]" in one.errors[0]
    assert four.errors == []
    assert "on each of 4 GPUs: weights 7.1 GiB, gradients 7.1 GiB, optimizer 14.2 GiB" in rows(four)["trainer"]


@pytest.mark.parametrize(
    ("gpus", "sections", "cure"),
    [
        ("8x H100 80GB", {"rollout": {"tensor_parallel": 3}}, "choose one of 1, 2, 4"),
        ("8x H100 80GB", {"rollout": {"expert_parallel": True}}, "no mixture of experts"),
        (
            "8x L4 24GB",
            {"rollout": {"gpu_memory": 0.5}, "trainer": {"gpus": 6}},
            ": raise rollout.gpu_memory, or raise rollout.tensor_parallel (to 2 or 4), or set rollout.quantization",
        ),
        (
            "8x H100 80GB",
            {
                "rollout": {
                    "gpu_memory": 0.225,
                    "max_response_length": 32000,
                    "batch_tokens": 2048,
                    "max_concurrency": 16,
                }
            },
            "and a sample at full length",
        ),
        ("4x H100 80GB + 4x A100 40GB", {}, "GPUs of several kinds"),
        ("8x H100 80GB", {"trainer": {"gpus": 16}}, "more ranks than devices; lower them"),
        ("8x RTX 4090 24GB", {}, "train on more GPUs (trainer.gpus, trainer.nodes), or train adapters only"),
        (
            "8x A100 40GB",
            {"rollout": {"max_response_length": 60_000}, "trainer": {"gpus": 8}},
            ": lower rollout.max_response_length and trainer.micro_tokens, or",
        ),
        (
            "8x A100 40GB",
            {"trainer": {"gpus": 8, "micro_tokens": 65536, "gradient_checkpointing": False}},
            ": set trainer.gradient_checkpointing = true, or lower trainer.micro_tokens, or train on more GPUs",
        ),
        (
            "8x H100 80GB",
            {"rollout": {"max_response_length": 1_000_000, "gpu_memory": 0.4}},
            ": lower rollout.max_response_length, or raise rollout.gpu_memory, or lower rollout.batch_tokens or",
        ),
        ("1x GTX 1GB", {"trainer": {"gpus": 1}}, "set rollout.quantization = 'fp8', or choose a smaller model"),
        ("8x H100 80GB", {"rollout": {"pipeline_parallel": 40}}, "but a machine has 8: lower one of them"),
        ("2x H100 80GB", {"trainer": {"gpus": 2}}, "add GPUs for engines, or set schedule.colocate = true"),
        ("8 H100", {}, "write e.g. 8x H100 80GB, or 4 nodes of 8x H100 80GB"),
        ("0x H100 80GB", {}, "has no GPU; write e.g."),
        ("8x H100 80GB", {"rollout": {"engine_args": {"tensor_parallel_size": 2}}}, "set that instead"),
    ],
)
def test_what_does_not_fit_is_an_error_with_a_cure(gpus: str, sections: dict[str, Any], cure: str) -> None:
    sections.setdefault("trainer", {"gpus": 4})
    report = check(gpus, **sections)
    assert any(cure in error for error in report.errors), report.errors


def test_a_folder_without_a_model_is_named() -> None:
    (error,) = check("8x H100 80GB", str(ROOT / "tests")).errors
    assert error.endswith("is neither a hub id (owner/name) nor a folder with a config.json")


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own retries take half a minute, and write into the report."""
    asked: list[str] = []

    def away(kind: str, name: str, *others: Any) -> str:
        asked.append(name)
        return "the hub is away"

    monkeypatch.setattr(hub, "check_repository", away)
    (error,) = assumed_check(Config.model_validate({"model": {"path": "nobody/has-this"}}), "8x H100 80GB").errors
    assert asked == ["nobody/has-this"]
    assert "not in the local cache, and the hub is away" in error
    assert "its config.json is enough" in error


@pytest.mark.parametrize("version", ["0.19.0", "0.99.0"])
def test_an_unknown_vllm_here_is_a_warning_with_a_cure(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """The run will be elsewhere; without --assume it is an error."""
    monkeypatch.setattr(versions, "installed", lambda: version)
    report = check("8x H100 80GB", trainer={"gpus": 4})
    assert report.errors == []
    (warning,) = (one for one in report.warnings if version in one)
    assert "pip install 'vllm==0.33.*'" in warning
    assert "this is the vLLM of this machine" in warning


def test_a_colocated_trainer_leaves_less_to_the_engine() -> None:
    tight = {"rollout": {"gpu_memory": 0.9}, "schedule": {"colocate": True}}
    report = check("1x H100 80GB", "qwen2.5-1.5b", **tight)
    (error,) = report.errors
    found = re.search(r"set it to at most (0\.\d+)", error)
    assert found is not None
    tight["rollout"] = {"gpu_memory": float(found[1])}
    assert check("1x H100 80GB", "qwen2.5-1.5b", **tight).errors == []
    (error,) = check("1x H100 80GB", "qwen2.5-1.5b", **tight, net={"transport": "ipc"}).errors
    assert "the trainer keeps" in error, "the weights that it offers, too"


def test_a_quantised_engine_has_more_room() -> None:
    plain, quantised = (
        rows(check("8x H100 80GB", rollout={"quantization": kind}, trainer={"gpus": 4}))["engines"]
        for kind in ("", "fp8")
    )
    assert "weights 14.2 GiB" in plain
    assert "weights 8.1 GiB" in quantised


def test_a_model_without_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        size_of_model(tmp_path, weights=False)
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    with pytest.raises(ConfigError, match="layers = 0: this is no model's size"):
        size_of_model(tmp_path, weights=False)


@pytest.mark.parametrize("name", ["num_attention_heads", "num_hidden_layers", "vocab_size", "hidden_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_dimensions_that_no_model_has_are_named(tmp_path: Path, name: str, value: int) -> None:
    tree = json.loads((MODELS / "qwen2.5-7b" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**tree, name: value}))
    with pytest.raises(ConfigError, match=f"= {value}: this is no model's size"):
        size_of_model(tmp_path, weights=False)


def test_a_machine_with_gpus_is_checked_by_them(tiny_model: Path, tmp_path: Path, monkeypatch) -> None:
    """Its host memory is not asked for what lies on the GPU."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n' * 8)
    tree = {
        "model": {"path": str(tiny_model)},
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "run": {"folder": str(tmp_path)},
        "rollout": {
            "max_prompt_length": 32,
            "max_response_length": 24,
            "kv_cache_gib": 10_000,
            "prompts_per_step": 1,
        },
        "reward": {"scorer": "exact", "workers": 0},
    }
    monkeypatch.setattr(gpus, "here", lambda: gpus.parse("1x H100 80GB"))
    errors = dryrun.quick_check(Config.model_validate(tree)).errors
    assert [error for error in errors if "schedule.colocate" in error], errors
    assert not [error for error in errors if error.startswith("memory")], errors
    monkeypatch.setattr(gpus, "here", lambda: None)
    errors = dryrun.quick_check(Config.model_validate(tree)).errors
    assert [error for error in errors if error.startswith("memory")], errors


@pytest.mark.parametrize(
    ("rollout", "cure"),
    [({"tensor_parallel": 3}, "attention heads"), ({"expert_parallel": True}, "no mixture of experts")],
)
def test_a_machine_without_gpus_divides_engines_too(
    tiny_model: Path, tmp_path: Path, rollout: dict[str, Any], cure: str
) -> None:
    """An engine on processors has ranks, as well; and the run may be started elsewhere."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    tree = {
        "model": {"path": str(tiny_model)},
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "run": {"folder": str(tmp_path)},
        "rollout": {"max_prompt_length": 32, "max_response_length": 24, "prompts_per_step": 1, **rollout},
        "reward": {"scorer": "exact", "workers": 0},
    }
    errors = dryrun.quick_check(Config.model_validate(tree)).errors
    assert len([error for error in errors if cure in error]) == 1, errors
