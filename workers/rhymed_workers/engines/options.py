"""Settings of an engine on GPUs as vLLM's arguments, and `rollout.engine_args`, checked before vLLM starts.

vLLM's own list of arguments is read from its source without importing it, which would take seconds.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError

OURS: Mapping[str, str] = {
    "model": "model.path",
    "dtype": "model.dtype",
    "seed": "run.seed",
    "max_model_len": "rollout.max_prompt_length and rollout.max_response_length",
    "max_num_seqs": "rollout.max_concurrency",
    "max_num_batched_tokens": "rollout.batch_tokens",
    "tensor_parallel_size": "rollout.tensor_parallel",
    "pipeline_parallel_size": "rollout.pipeline_parallel",
    "data_parallel_size": "rollout.workers",
    "enable_expert_parallel": "rollout.expert_parallel",
    "gpu_memory_utilization": "rollout.gpu_memory",
    "quantization": "rollout.quantization",
    "enable_sleep_mode": "schedule.colocate",
    "kv_cache_memory_bytes": "rollout.kv_cache_gib on a CPU, rollout.gpu_memory on a GPU",
    "speculative_config": "[drafts]",
}
"""Arguments that follow from a setting of ours."""

FIXED = (
    "skip_tokenizer_init", "generation_config", "logprobs_mode", "disable_log_stats", "worker_extension_cls",
    "weight_transfer_config", "additional_config", "async_scheduling", "load_format",
)  # fmt: skip
"""Arguments on which exact samples or weight updates depend."""


def chosen(config: Config, *, cpu: bool) -> dict[str, Any]:
    """Arguments of `vllm.EngineArgs` for the run's settings. `cpu`: vLLM's platform has no GPU.

    Raises `ConfigError` for `rollout.engine_args` that do not fit the installed vLLM.
    """
    rollout = config.rollout
    given = passed(config)
    if wrong := list(problems(given, engine_arguments() if given else None)):
        raise ConfigError("\n".join(wrong))
    arguments: dict[str, Any] = {}
    if rollout.engine_gpus > 1:
        arguments |= {
            "tensor_parallel_size": rollout.tensor_parallel,
            "pipeline_parallel_size": rollout.pipeline_parallel,
            "distributed_executor_backend": "mp",
        }
    if rollout.expert_parallel:
        arguments["enable_expert_parallel"] = True
    if rollout.quantization:
        arguments["quantization"] = rollout.quantization
    if not cpu:
        if rollout.batch_tokens:
            arguments["max_num_batched_tokens"] = rollout.batch_tokens
        arguments["gpu_memory_utilization"] = rollout.gpu_memory
        arguments["enable_sleep_mode"] = config.schedule.colocate
    return arguments | given


def passed(config: Config) -> dict[str, Any]:
    """`rollout.engine_args` without the engine's own head, which `launch` takes."""
    given = dict(config.rollout.engine_args)
    if config.drafts.by_engine:
        del given["speculative_config"]
    return given


def problems(given: Mapping[str, Any], known: Set[str] | None) -> Iterator[str]:
    """What is wrong with what is `passed`. `known`: see `engine_arguments`; None: no vLLM to compare with."""
    for name, value in given.items():
        where = f"rollout.engine_args.{name}"
        if name in OURS:
            yield f"{where}: this follows from {OURS[name]}: set that instead"
        elif name in FIXED:
            yield f"{where}: rhymed sets this itself; exact samples and weight updates depend on it: leave it out"
        elif name == "compilation_config" and _full_graphs(value):
            yield (
                f'{where}: with cudagraph_mode "FULL" attention to prompts is wrong (FlashAttention 3): leave it out,'
                ' or use "FULL_AND_PIECEWISE"'
            )
        elif known is not None and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            near = f"; did you mean {close[0]}?" if close else ""
            yield f"{where}: the installed vLLM's EngineArgs have no such argument{near}"


def _full_graphs(compilation: Any) -> bool:
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    return isinstance(mode, str) and mode.upper() == "FULL"


@functools.cache
def engine_arguments() -> Set[str] | None:
    """Names of the arguments of the installed vLLM's `EngineArgs`, which checks their types itself; None if vLLM is
    not installed."""
    spec = importlib.util.find_spec("vllm")  # without importing it
    if spec is None or not spec.origin:
        return None
    file = Path(spec.origin).parent / "engine" / "arg_utils.py"
    try:
        tree = ast.parse(file.read_text())
    except (OSError, SyntaxError):
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
            return {name.id for name in fields if isinstance(name, ast.Name)}
    return None
