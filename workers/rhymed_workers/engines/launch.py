"""Starts and ends vLLM: its arguments, environment, log, and the processes that it leaves.

Everything that depends on the machine (CPU or GPU) is decided here. Knows nothing of samples.

`attachment_problem` says what an engine that has started lacks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rhymed.core import atomic, private
from rhymed.core.config import Config, Drafts
from rhymed.core.errors import EngineError
from rhymed.core.run.layout import layout_of
from rhymed.core.service import logfile
from rhymed.histospec import graphs
from rhymed.histospec.settings import KEY
from rhymed.histospec.versions import (
    HISTOSPEC,
    RELEASES,
    RUNNER,
    RUNNERS,
    installed,
    v2_lacks,
    without_v2,
)
from rhymed_workers.engines import options
from rhymed_workers.engines.extension import BACKEND, OWNER
from rhymed_workers.trainer.policy.grades import NO_DRAFTS, carries_state

log = logging.getLogger(__name__)

KEPT = "model-runner"  # file in the run's folder: the runner that its engines on this host took first
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

_logging: private.MemoryFile | None = None  # vLLM's configuration of logs, from `environment` to `end_children`


def arguments(config: Config, folder: Path, runner: str = "v1") -> dict[str, Any]:
    """Of vLLM's `EngineArgs`. `runner`: see `take_runner`."""
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
            runner=runner,
            own=rollout.engine_args["speculative_config"] if config.drafts.by_engine else None,
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
            "enable_prefix_caching": not is_recurrent(folder),  # vLLM caches states with chunks only
            "max_num_batched_tokens": max(length, rollout.batch_tokens or BATCH_TOKENS),
        }
    elif "speculative_config" in chosen and not config.drafts.by_engine:
        drafted = graphs.draft_length(config.drafts.max_length)
        chosen["speculative_config"]["num_speculative_tokens"] = drafted
        if runner != "v2":  # which does not round the sizes of its graphs to multiples of the longest draft
            chosen["compilation_config"] = graphs.compilation(rollout.max_concurrency, drafted)
    return chosen | options.chosen(config, cpu=current_platform.is_cpu())


def is_recurrent(folder: Path) -> bool:
    """Whether the model carries a state from token to token, besides keys and values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder).get_text_config()
    except (OSError, ValueError):  # only vLLM knows it, or nobody, which vLLM says
        return False
    return carries_state(config, AutoModelForCausalLM._model_mapping.get(type(config), None))


def supported(config: Config, folder: Path) -> Config:
    """With what vLLM can do here: on a processor it does not take back the states of drafts that were wrong."""
    from vllm.platforms import current_platform

    if config.drafts.method == "none" or not current_platform.is_cpu() or not is_recurrent(folder):
        return config
    log.warning("%s", NO_DRAFTS)
    drafts, rollout = config.drafts.model_copy(update={"method": "none"}), config.rollout
    if config.drafts.by_engine:
        rollout = rollout.model_copy(update={"engine_args": options.passed(config)})
    return config.model_copy(update={"drafts": drafts, "rollout": rollout})


def _speculation(
    drafts: Drafts,
    *,
    keyed: bool,
    stages: int = 1,
    own: Mapping[str, Any] | None = None,
    runner: str = "v1",
) -> dict[str, Any]:
    """`stages`: of the pipeline. `own`: vLLM's `speculative_config` of its own head, which drafts, too."""
    if drafts.method == "none":
        options = {"additional_config": {KEY: {"keyed": keyed}}}
        # vLLM 0.32 does not start its first model runner with both; 0.33 switches it off by itself.
        return options | ({"async_scheduling": False} if keyed and stages > 1 else {})
    speculative = {
        "method": "ngram" if runner == "v2" else "custom_class",  # see `rhymed.histospec.runner_v2`
        "model": HISTOSPEC,
        "num_speculative_tokens": drafts.max_length,
    }
    depth = 0
    if own is not None:  # drafts of history may be longer, and vLLM takes multiples of what some heads draft
        depth = int(own["num_speculative_tokens"])
        speculative = {**own, "num_speculative_tokens": -(-drafts.max_length // depth) * depth}
    return {
        "speculative_config": speculative,
        "additional_config": {
            KEY: {
                "keyed": keyed,
                "budget": drafts.budget,
                "matching": drafts.matching,
                "memory_mib": drafts.memory_mib,
                "engine": depth,
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


def environment(*, first_runner: bool = False, exact: str = "distribution") -> None:
    """For vLLM and its child processes; variables that the user has set stay. Call it before vLLM is imported: its
    import reads some of them. `first_runner`: take model runner V1; else it is left to `take_runner`, or to vLLM.
    `exact`: `rollout.exact`."""
    values = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        OWNER: str(os.getpid()),
        "RAY_USAGE_STATS_ENABLED": "0",
        # A fork would copy the locks of ZeroMQ's and LMDB's threads, which run in this process.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if not os.environ.get(LOGGING):
        values[LOGGING] = str(_logging_file())
    private.compiled()
    if first_runner:
        values[RUNNER] = RUNNERS["v1"]
    if installed().endswith("+cpu"):
        values |= CPU_ENVIRONMENT  # before vLLM is imported: with it comes torch, which reads some of them
    _set(values)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():  # however it was built
        _set(CPU_ENVIRONMENT)
    elif exact == "tokens":
        _set({BATCH_INVARIANT: "1"})


def take_runner(config: Config) -> str:
    """Chooses vLLM's model runner for the engines of this process: "v1" or "v2"; empty: nothing of ours depends on
    it, and vLLM chooses. The run's folder keeps the first choice, because the runners may differ in the last bit.

    Call it after `environment`. Raises `EngineError`: V2 is asked for and cannot be."""
    import vllm
    from vllm.triton_utils import HAS_TRITON

    asked: str = config.rollout.runner
    if asked == "auto" and config.rollout.sampler != "keyed" and config.drafts.method == "none":
        return ""
    if asked == "auto" and (chosen := os.environ.get(RUNNER)):
        asked = "v1" if chosen == "0" else "v2"
    folder = layout_of(config).folder
    kept = _kept_runner(folder)
    if kept and asked not in ("auto", kept):
        log.warning("model runner %s is asked for, but the run began with %s, which it keeps", asked, kept)
    asked = kept or asked
    if asked == "v2" and (lacks := v2_lacks(config, vllm.__version__, triton=bool(HAS_TRITON))):
        why = "the run began with model runner V2" if kept else "model runner V2 is asked for"
        cure = "resume it where it can be had" if kept else without_v2(config)
        raise EngineError(f"{why}, but {lacks}: {cure}")
    runner = "v2" if asked == "v2" else "v1"
    _take(runner, config)
    return runner


def _take(runner: str, config: Config) -> None:
    folder = layout_of(config).folder
    if folder.is_dir() and not _kept_runner(folder):
        atomic.write(folder / KEPT, runner + "\n", synced=True)
    os.environ[RUNNER] = RUNNERS[runner]
    log.info("vLLM's model runner is %s", runner.upper())


def _kept_runner(folder: Path) -> str:
    """Of a run that has begun; empty: there is none."""
    try:
        kept = (folder / KEPT).read_text().strip()
    except FileNotFoundError:
        return ""
    return kept if kept in RUNNERS else ""


def _set(values: dict[str, str]) -> None:
    for name, value in values.items():
        if name == OWNER or not os.environ.get(name):
            os.environ[name] = value


def _logging_file() -> Path:
    """A logging configuration that sends the log lines of vLLM and its child processes to rhymed's log.
    A user who could write it could run code in vLLM's processes."""
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
    global _logging
    _logging = private.MemoryFile("vllm-logging", json.dumps(tree).encode())
    return _logging.path


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
    global _logging
    if _logging is not None:
        _logging.close()
        if os.environ.get(LOGGING) == str(_logging.path):
            del os.environ[LOGGING]  # other child processes would look for the file
        _logging = None
    if "multiprocessing" not in sys.modules:
        return
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()
        child.join(timeout=5)


# Whether keyed sampling and drafting really are in an engine that has started. Pure: reports in, a sentence out.

BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"

PLAIN = 'set rollout.sampler = "vllm" and drafts.method = "none": then batching changes which tokens are sampled'


def environment_problem(environment: Mapping[str, str], *, runner: str, exact: str) -> str:
    """Of an environment that contradicts the settings; else empty. `runner`: `rollout.runner`. `exact`:
    `rollout.exact`."""
    chosen, invariant = environment.get(RUNNER, ""), environment.get(BATCH_INVARIANT, "")
    if runner != "auto" and chosen not in ("", RUNNERS[runner]):
        return f"{RUNNER}={chosen} is set, but rollout.runner = {runner!r}: unset it, or set rollout.runner to 'auto'"
    if exact == "tokens" and invariant not in ("", "1"):
        return (
            f"{BATCH_INVARIANT}={invariant} is set, but rollout.exact = 'tokens' needs batch-invariant kernels: unset"
            " it, or set rollout.exact = 'distribution'"
        )
    return ""


def attachment_problem(ranks: Sequence[Mapping[str, Any]], *, keyed: bool, drafts: bool) -> str:
    """Empty if all that is wanted is there. `ranks`: of all worker processes, see `histospec.plugin.attached`."""
    why = next((str(rank["why"]) for rank in ranks if rank["why"]), "something else has replaced a part of vLLM")
    cure = f"install vLLM {', '.join(RELEASES)} as published, or {PLAIN}"
    if keyed and not (ranks and all(rank["keyed"] for rank in ranks)):
        return f'rollout.sampler = "keyed", but the engine does not sample with keys: {why}; {cure}'
    if keyed and (refused := sorted({name for rank in ranks for name in rank["refused"]})):
        names = ", ".join(refused)
        return (
            f'rollout.sampler = "keyed", but it is not possible with the logits processors {names}: leave'
            f" rollout.engine_args.logits_processors out, uninstall the package that brings them, or {PLAIN}"
        )
    if drafts and not any(rank["drafter"] for rank in ranks):
        return f'drafts.method = "history", but the engine does not draft: {why}; {cure}'
    return ""
