"""What a check says of a run with LoRA, before anything starts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.check import arithmetic, lora, memory
from rhymed.check.inputs import read
from rhymed.check.lora import Adapters
from rhymed.check.memory import Models
from rhymed.check.report import Report
from rhymed.core.config import Config, Lora
from rhymed.core.errors import ConfigError
from tests.check.test_memory import LARGE, SIZE
from tests.packages import needs

pytestmark = needs("peft")

FEW = Adapters(layers=112, kinds=["q_proj", "v_proj"], parameters=10_000_000, frozen=800_000_000)


def config(**trainer: Any) -> Config:
    return Config.model_validate({"trainer": {"lr": 1e-4, "lora": {}, **trainer}})


def rows(made: Config, adapters: Adapters | None) -> dict[str, str]:
    load, models = arithmetic.workload(made.rollout, made.trainer, 64, 100), Models(SIZE, adapters)
    return dict(memory.describe(made, models, memory.needs(made, models, load), LARGE).rows)


def test_memory_of_adapters() -> None:
    """1,000 M parameters stand still, 10 M have gradients and moments and are written."""
    reported, full = rows(config(), FEW), rows(Config(), None)
    assert reported["LoRA"] == (
        "10.00 M parameters are trained: rank 16 on 112 linear layers (q_proj, v_proj), scale 2 (alpha / rank)"
    )
    assert "weights 3.8 GiB, gradients 38 MiB, optimizer 76 MiB" in reported["trainer"]
    assert reported["disk"].startswith("3 checkpoints of 114 MiB, ")
    assert reported["/dev/shm"].startswith("114 MiB for weights")
    assert reported["engines"] == full["engines"]


def test_frozen_layers_have_the_type_of_the_computation() -> None:
    """800 M of the 1,000 M parameters take half of it."""
    made = Config.model_validate({"model": {"train_dtype": "bfloat16"}, "trainer": {"lr": 1e-4, "lora": {}}})
    assert "weights 2.3 GiB" in rows(made, FEW)["trainer"]


def test_a_reference_costs_nothing() -> None:
    assert "reference" not in rows(config(kl_coef=0.1), FEW)["trainer"]
    assert "reference" in rows(Config.model_validate({"trainer": {"kl_coef": 0.1}}), None)["trainer"]


@pytest.mark.parametrize(("lr", "reported"), [(1e-6, True), (9e-6, True), (1e-5, False), (2e-4, False)])
def test_a_rate_of_full_training_is_too_low(lr: float, reported: bool) -> None:
    found = lora.hint(lr)
    assert bool(found) == reported
    assert all("about ten times the learning rate of full training" in line for line in found)


def test_a_check_reads_the_model_s_layers(tiny_model: Path) -> None:
    found = lora.adapters(Lora(rank=4), tiny_model)
    assert (found.layers, len(found.kinds)) == (14, 7)
    assert found.parameters == 2 * 4 * (4 * 128 + 3 * 192)
    assert found.frozen == 2 * (4 * 64 * 64 + 3 * 64 * 128)


def test_everything_is_reported_at_once(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "count"}))
    made = Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "data": {"path": str(tmp_path / "nothing.jsonl")},
            "rollout": {"max_prompt_length": 64, "max_response_length": 64},
            "trainer": {"lora": {"targets": ["qproj"]}},
        }
    )
    report = Report()
    inputs = read(made, report)
    assert inputs.adapters is None
    assert "did you mean q_proj" in report.errors[0]
    assert "nothing.jsonl" in report.errors[1]
    assert ["low for LoRA" in line for line in report.warnings] == [True]


def test_the_package_is_needed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rhymed\[lora\]'"):
        lora.adapters(Lora(), tiny_model)


def test_a_trainer_without_a_model_has_no_adapters() -> None:
    with pytest.raises(ValueError, match=r"trainer\.lora needs a model"):
        Config.model_validate({"trainer": {"engine": "trace", "lora": {}}, "rollout": {"engine": "trace"}})


ADAPTER = {"peft_type": "LORA", "r": 16, "lora_alpha": 32}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, r"is no adapter's folder: it has no adapter_config\.json"),
        ("{", "is no adapter's configuration"),
        ({"peft_type": "LORA", "lora_alpha": 8}, "is no adapter's configuration: KeyError"),
        ({**ADAPTER, "peft_type": "IA3"}, "peft_type = IA3, only LORA"),
        ({**ADAPTER, "use_dora": True}, "use_dora = True: only plain LoRA"),
        ({**ADAPTER, "use_rslora": True}, "use_rslora = True: only plain LoRA"),
        ({**ADAPTER, "r": 8}, r"trainer\.lora\.rank = 16, but the adapter .* has 8: set it to that"),
        ({**ADAPTER, "lora_alpha": 16}, r"trainer\.lora\.alpha = 32, but the adapter .* has 16"),
        (ADAPTER, r"adapter_model\.safetensors is no readable safetensors file"),
    ],
)
def test_an_adapter_to_begin_with(tiny_model: Path, tmp_path: Path, settings: Any, message: str) -> None:
    if settings is not None:
        (tmp_path / "adapter_config.json").write_text(settings if settings == "{" else json.dumps(settings))
        (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=message):
        lora.adapters(Lora(adapter=str(tmp_path)), tiny_model)


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    """A folder with an adapter of q_proj and v_proj."""
    from rhymed_workers.trainer.policy.lora import LoraPolicy

    LoraPolicy(Lora(rank=4, alpha=8, targets=["q_proj", "v_proj"]), tiny_model).save(tmp_path)
    return tmp_path


def test_an_adapter_of_other_layers_is_refused(tiny_model: Path, adapter: Path) -> None:
    wanted = Lora(rank=4, alpha=8, targets=["v_proj", "q_proj"], adapter=str(adapter))
    assert lora.adapters(wanted, tiny_model).layers == 4
    assert lora.describe(wanted, FEW).endswith(f", beginning with {adapter}")
    with pytest.raises(ConfigError, match=r"has 4 layers, .* chooses 14: only the choice has .* \(q_proj, v_proj\)"):
        lora.adapters(wanted.model_copy(update={"targets": []}), tiny_model)
    with pytest.raises(ConfigError, match=r"chooses 2: only the adapter has model\.layers\.0\.self_attn\.v_proj"):
        lora.adapters(wanted.model_copy(update={"targets": ["q_proj"]}), tiny_model)


def test_an_adapter_that_is_cut_short_is_refused(tiny_model: Path, adapter: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors is cut short"):
        lora.adapters(Lora(rank=4, alpha=8, targets=["q_proj", "v_proj"], adapter=str(adapter)), tiny_model)
