"""Settings for GPUs as vLLM's arguments, and further arguments against the installed vLLM's own list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed_workers.engines import options

CONTRACTS = Path(__file__).parents[2] / "data" / "vllm"
KNOWN = {"enforce_eager", "compilation_config"}


def chosen(cpu: bool = False, colocate: bool = False, **rollout: Any) -> dict[str, Any]:
    return options.chosen(Config.model_validate({"rollout": rollout, "schedule": {"colocate": colocate}}), cpu=cpu)


def test_on_a_gpu_the_settings_become_arguments() -> None:
    assert chosen() == {"gpu_memory_utilization": 0.9, "enable_sleep_mode": False}
    assert chosen(
        colocate=True,
        tensor_parallel=4,
        pipeline_parallel=2,
        expert_parallel=True,
        gpu_memory=0.5,
        batch_tokens=8192,
        quantization="fp8",
    ) == {
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "enable_expert_parallel": True,
        "quantization": "fp8",
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.5,
        "enable_sleep_mode": True,
    }


def test_on_a_cpu_nothing_of_gpus_is_said() -> None:
    assert chosen(cpu=True, colocate=True, batch_tokens=100) == {}


def test_further_arguments_are_passed_as_they_are() -> None:
    pytest.importorskip("vllm")
    assert chosen(cpu=True, engine_args={"enforce_eager": True}) == {"enforce_eager": True}
    with pytest.raises(ConfigError, match="no such argument; did you mean enforce_eager"):
        chosen(engine_args={"enforce_eger": True})


def test_a_head_is_named_among_them_if_it_drafts_beside_history() -> None:
    head = {"method": "eagle3", "model": "head", "num_speculative_tokens": 3}
    rollout = {"runner": "v2", "engine_args": {"speculative_config": head}}
    with_head = Config.model_validate({"rollout": rollout, "drafts": {"method": "history+engine"}})
    assert options.chosen(with_head, cpu=True) == {}, "`launch` passes it"
    with pytest.raises(ConfigError, match="speculative_config: this follows from \\[drafts\\]"):
        options.chosen(Config.model_validate({"rollout": rollout}), cpu=True)


def test_every_name_in_the_tables_is_an_argument_of_the_installed_vllm() -> None:
    pytest.importorskip("vllm")
    known = options.engine_arguments()
    assert known is not None
    assert {*options.OURS, *options.FIXED} <= known
    assert {*chosen(tensor_parallel=2, expert_parallel=True, quantization="fp8", batch_tokens=1)} <= known


@pytest.mark.parametrize("contract", sorted(CONTRACTS.glob("*.json")), ids=lambda file: file.stem)
def test_every_release_has_the_arguments(contract: Path) -> None:
    (names,) = _named(json.loads(contract.read_text()), "vllm.engine.arg_utils:AsyncEngineArgs")
    ours = chosen(tensor_parallel=2, expert_parallel=True, quantization="fp8", batch_tokens=1)
    assert {*options.OURS, *options.FIXED, *ours} <= set(names.split())


def _named(tree: Any, name: str) -> list[str]:
    """Values of this key anywhere in the tree that are text."""
    below = tree.values() if isinstance(tree, dict) else []
    here = [tree[name]] if isinstance(tree, dict) and isinstance(tree.get(name), str) else []
    return here + [found for part in below for found in _named(part, name)]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("enforce_eager", True, ""),
        ("compilation_config", {"mode": 3}, ""),
        ("enforce_eger", True, "no such argument; did you mean enforce_eager"),
        ("tensor_parallel_size", 2, "set that instead"),
        ("weight_transfer_config", {}, "leave it out"),
        ("compilation_config", {"cudagraph_mode": "FULL"}, "attention to prompts is wrong"),
        ("compilation_config", {"cudagraph_mode": "PIECEWISE"}, ""),
    ],
)
def test_what_is_wrong_with_a_further_argument(name: str, value: Any, problem: str) -> None:
    found = list(options.problems({name: value}, KNOWN))
    assert len(found) == bool(problem)
    assert all(problem in text and text.startswith(f"rollout.engine_args.{name}") for text in found)


def test_without_vllm_only_our_own_names_are_checked() -> None:
    assert list(options.problems({"anything": 1}, None)) == []
    assert len(list(options.problems({"model": "x"}, None))) == 1
