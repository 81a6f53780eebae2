"""Starts and ends vLLM: its arguments, environment, log, and the processes that it leaves.

Everything that depends on the machine (CPU or GPU) is decided here. Knows nothing of samples.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rhymed.config import Config, Drafts
from rhymed.histospec import graphs
from rhymed.histospec.heads.place import head_file
from rhymed.histospec.settings import KEY
from rhymed.histospec.versions import RUNNER, installed
from rhymed.run.layout import layout_of
from rhymed.service import logfile
from rhymed_workers.engines.adapter.attached import BATCH_INVARIANT
from rhymed_workers.engines.extension import BACKEND
from rhymed_workers.engines.gpus import options
from rhymed_workers.engines.owner import OWNER

log = logging.getLogger(__name__)

BATCH_TOKENS = 2048  # in one forward pass, at least; more would only make running samples wait longer on a CPU
LOGGING = "VLLM_LOGGING_CONFIG_PATH"
RELOAD = "vllm.model_executor.model_loader.reload.layerwise"
RENDERERS = "vllm.renderers.base"
CPU_ENVIRONMENT = {
    # Threads that spin at a barrier while trainer and scorers use the cores waste whole time slices: measured 1.3
    # instead of 8 tokens/s with 2 cores shared by 5 busy threads.
    "OMP_WAIT_POLICY": "passive",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets vLLM accept the executor "uni"
    "TORCHDYNAMO_DISABLE": "1",  # the sampler's one compiled function costs seconds at the first token
}
T = TypeVar("T")


def arguments(config: Config, folder: Path) -> dict[str, Any]:
    from vllm.config import WeightTransferConfig
    from vllm.platforms import current_platform

    rollout = config.rollout
    length = rollout.max_prompt_length + config.longest_response
    chosen = {
        "model": str(folder),
        "dtype": config.model.dtype,
        "seed": config.run.seed % 2**31,
        "max_model_len": length,
        "max_num_seqs": rollout.max_concurrency,
        "skip_tokenizer_init": True,  # tokens in, tokens out
        "generation_config": "vllm",  # only our configuration shapes the distribution
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,  # a group's samples share their prompt
        "disable_log_stats": True,
        "use_tqdm_on_load": sys.stderr.isatty(),
        "worker_extension_cls": "rhymed_workers.engines.extension.Extension",
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        **_speculation(
            config.drafts,
            keyed=rollout.sampler == "keyed",
            stages=rollout.pipeline_parallel,
            head=str(head_file(config, layout_of(config).folder)) if config.drafts.headed else "",
        ),
    }
    if current_platform.is_cpu():
        _warn_of_slow_bfloat16(config.model.dtype)
        chosen |= {
            "kv_cache_memory_bytes": int(rollout.kv_cache_gib * 2**30),
            "block_size": 32,  # tokens; siblings share only whole blocks of their prompt, and 128 is longer than many
            "enforce_eager": True,  # compiling takes minutes at the start without a measurable gain
            "distributed_executor_backend": "uni",  # one process less
            # A request that is prefilled in chunks rewinds its seed's generator, which CPU generators cannot.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(length, rollout.batch_tokens or BATCH_TOKENS),
        }
    elif "speculative_config" in chosen:
        drafted = graphs.draft_length(config.drafts.max_length)
        chosen["speculative_config"]["num_speculative_tokens"] = drafted
        chosen["compilation_config"] = graphs.compilation(rollout.max_concurrency, drafted)
    return chosen | options.chosen(config, cpu=current_platform.is_cpu())


def _speculation(drafts: Drafts, *, keyed: bool, stages: int = 1, head: str = "") -> dict[str, Any]:
    """`stages`: of the pipeline. `head`: the file of the learned head; empty: there is none."""
    if drafts.method == "none":
        options = {"additional_config": {KEY: {"keyed": keyed}}}
        # vLLM 0.32 does not start its first model runner with both; 0.33 switches it off by itself.
        return options | ({"async_scheduling": False} if keyed and stages > 1 else {})
    return {
        "speculative_config": {
            "method": "custom_class",
            "model": "rhymed.histospec.proposer.HistoSpec",
            "num_speculative_tokens": drafts.max_length,
        },
        "additional_config": {
            KEY: {
                "keyed": keyed,
                "budget": drafts.budget,
                "matching": drafts.matching,
                "memory_mib": drafts.memory_mib,
                "head": head,
            }
        },
    }


def _warn_of_slow_bfloat16(dtype: str) -> None:
    import torch
    from vllm.platforms import CpuArchEnum, current_platform

    if dtype != "bfloat16" or current_platform.get_cpu_architecture() != CpuArchEnum.X86:
        return
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        log.warning("this CPU has no bfloat16 arithmetic: model.dtype = 'float32' is several times faster")


def environment(*, first_runner: bool = True, exact: str = "distribution") -> None:
    """For vLLM and its child processes; variables that the user has set stay. Call it before vLLM is imported: its
    import reads some of them. `first_runner`: keyed sampling or drafts are wanted, which need vLLM's first model
    runner. `exact`: `rollout.exact`."""
    values = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        OWNER: str(os.getpid()),
        LOGGING: str(_logging_file()),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if first_runner:
        values[RUNNER] = "0"
    if installed().endswith("+cpu"):
        values |= CPU_ENVIRONMENT  # before vLLM is imported: with it comes torch, which reads some of them
    _set(values)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():  # however it was built
        _set(CPU_ENVIRONMENT)
    elif exact == "tokens":
        _set({BATCH_INVARIANT: "1"})


def _set(values: dict[str, str]) -> None:
    for name, value in values.items():
        if name == OWNER or not os.environ.get(name):
            os.environ[name] = value


def _logging_file() -> Path:
    """A logging configuration that sends the log lines of vLLM and its child processes to our log."""
    ours = logfile.current_file()
    handler: dict[str, Any] = {"class": "logging.StreamHandler", "formatter": "line", "level": "WARNING"}
    if ours is not None:
        handler = logfile.handler_for_vllm(ours)
    tree = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"}},
        "handlers": {"out": handler},
        "loggers": {
            "vllm": {"handlers": ["out"], "level": "INFO", "propagate": False},
            RELOAD: {"level": "ERROR"},  # it warns at every update of layers without weights of their own
            RENDERERS: {"level": "ERROR"},  # a traceback where there is no tokenizer for chats
        },
    }
    path = _logging_path()
    path.write_text(json.dumps(tree))
    return path


def _logging_path() -> Path:
    return Path(tempfile.gettempdir()) / f"rhymed-vllm-logging-{os.getpid()}.json"


def in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Like `asyncio.to_thread`, but does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=body, name="engine-start", daemon=True).start()
    return future


def end_children() -> None:
    """Kill the processes that vLLM has left, and remove its logging configuration."""
    path = _logging_path()
    path.unlink(missing_ok=True)
    if os.environ.get(LOGGING) == str(path):
        del os.environ[LOGGING]  # other child processes would look for the file
    if "multiprocessing" not in sys.modules:
        return
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()
        child.join(timeout=5)
