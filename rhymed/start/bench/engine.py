"""A vLLM engine in a process of its own, for benchmarks that compare engines with different settings.

Engines wait idle while another one is measured, so several take turns on one machine. `EngineProcess` is the
measuring side; `serve` runs in the engine's process.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from rhymed.core.errors import ConfigError
from rhymed.histospec.plugin import attached, drafter_of

START_S = 300.0
RUN_S = 1200.0
SHARED = 0.92  # of a GPU's memory, by all engines on it
WORKING = 2 << 30  # bytes of an engine in addition to weights, cache and logits: libraries, graphs, activations
WARM_STEPS = 4
LEAST_CACHE, MOST_CACHE = 1 << 28, 8 << 30


class Request(NamedTuple):
    prompt: list[int]  # tokens
    max_tokens: int
    temperature: float
    seed: int
    name: str = ""
    history: str = ""  # the prompt whose history it uses
    step: int = 0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0


@dataclass(frozen=True)
class Run:
    """The results of some requests: `tokens` were generated in `seconds`, while the batch was full."""

    seconds: float
    tokens: int
    steps: int
    responses: list[list[int]]  # tokens, by request; incomplete if the run ended before
    logprobs: list[list[float]]  # of these tokens, under the distribution they were sampled from
    accounts: list[tuple[float, ...] | None]  # see rhymed.histospec.drafts.yields
    preempted: int  # preemptions of running requests


FAILURES = (RuntimeError, OSError, EOFError)
"""Errors of an engine's process. After one of them it has ended, or is unusable."""


def share(engines: int, total: int, weights: int, logits: int) -> dict[str, Any]:
    """Arguments of vllm.LLM for each of several engines on a GPU with `total` bytes.

    vLLM starts only if `gpu_memory_utilization` of the GPU is free, whatever its cache takes, so each requests its
    part. `weights`: bytes of one engine's; `logits`: numbers of one step with drafts, which vLLM tries at its start.
    Raises `ConfigError` if that leaves no room for a cache.
    """
    part = SHARED / engines
    cache = int(part * total) - weights - WORKING - 3 * logits  # bfloat16, and half of it again for the sampler
    if cache < LEAST_CACHE:
        fitting = "fewer engines, or a smaller model" if engines > 1 else "a smaller model"
        raise ConfigError(
            f"a GPU of {total / 2**30:.0f} GiB has no room for {engines} engines with {weights / 2**30:.1f} GiB of"
            f" weights each: take {fitting}"
        )
    return {"gpu_memory_utilization": round(part, 3), "kv_cache_memory_bytes": min(cache, MOST_CACHE)}


class EngineProcess:
    """`engine`: arguments of vllm.LLM. `fix_expand`: see `plugin`.
    `stock`: vLLM chooses its model runner. `exact`: see `rollout.exact`."""

    def __init__(
        self,
        engine: dict[str, Any],
        *,
        fix_expand: bool = False,
        stock: bool = False,
        exact: str = "distribution",
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, remote_end = context.Pipe()
        given = (remote_end, engine, fix_expand, stock, exact)
        self._process = context.Process(target=serve, args=given, daemon=True)
        self._process.start()
        remote_end.close()

    def ready(self) -> None:
        self._receive(START_S, "start")

    def run(self, requests: Sequence[Request], batch: int, *, whole: bool = False) -> Run:
        """Runs `batch` requests at a time. Ends when fewer are left, or with `whole` when none is left."""
        self.begin(requests, batch, whole=whole)
        while self.advance(RUN_S / 2):
            pass
        return self.finish()

    def begin(self, requests: Sequence[Request], batch: int, *, whole: bool = False) -> None:
        """Starts what `run` does; then call `advance` until it returns False, and `finish`."""
        self._call("begin", list(requests), batch, whole)

    def advance(self, seconds: float) -> bool:
        """Runs engine steps for `seconds`. False: there was none to run."""
        return bool(self._call("advance", seconds))

    def finish(self) -> Run:
        return Run(*self._call("finish"))

    def remember(self, prompt: str, context: list[int], past: Sequence[list[int]]) -> None:
        """Gives the engine earlier responses, for HistoSpec or for vLLM's suffix decoding. Both draft from them for
        other prompts, too."""
        self._call("remember", prompt, context, [list(response) for response in past])

    def forget(self) -> None:
        """Drops every response. HistoSpec drops those of a prompt in the next `remember`."""
        self._call("forget")

    def call(self, method: str, *arguments: Any) -> Any:
        return self._call("call", method, *arguments)

    def about(self) -> dict[str, Any]:
        """What vLLM chose, and seconds to start it."""
        return dict(self._call("about"))

    def pace(
        self, requests: Sequence[Request], batch: int, drafts: Sequence[int], steps: int
    ) -> dict[str, list[float]]:
        """For each number of drafted tokens a request, while `batch` requests decode: [median, least] milliseconds of
        a step, and the tokens that each request got. Drafts are wrong; an engine without a drafter has only 0
        drafts."""
        return dict(self._call("pace", list(requests), batch, list(drafts), steps))

    def close(self) -> None:
        self._link.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()

    def _call(self, *question: Any) -> Any:
        self._link.send(question)
        return self._receive(RUN_S, question[0])

    def _receive(self, timeout_s: float, what: str) -> Any:
        deadline = time.monotonic() + timeout_s
        while not self._link.poll(1.0):
            if not self._process.is_alive():
                raise RuntimeError(f"the engine's process ended during {what}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine did not answer {what} within {timeout_s:g} s")
        answer, error = self._link.recv()
        if error:
            raise RuntimeError(f"{what}: {error}")
        return answer


def serve(link: Connection, engine: dict[str, Any], fix_expand: bool, stock: bool, exact: str) -> None:
    import os
    import traceback

    began = time.monotonic()
    from rhymed_workers.engines.launch import environment

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the scheduler is asked in this process
    try:
        environment(first_runner=not stock, exact=exact)
        if fix_expand:
            from rhymed.histospec.plugin import repair_rejection

            repair_rejection()
        from vllm import LLM

        served = EngineServer(LLM(**engine), began)
        link.send((None, ""))
        while True:
            name, *arguments = link.recv()
            link.send((getattr(served, name)(*arguments), ""))
    except EOFError:
        return
    except Exception:
        link.send((None, traceback.format_exc()))


class EngineServer:
    def __init__(self, llm: Any, began: float) -> None:
        """`began`: start time of its process."""
        self._started_s = time.monotonic() - began
        self._engine = llm.llm_engine
        core = self._engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._runner = core.model_executor.driver_worker.worker.model_runner
        self._drafter = drafter_of(self._runner)
        self._count = self._preempted = 0
        self._preempt = self._scheduler._preempt_request
        self._scheduler._preempt_request = self._preempting

    def begin(self, requests: list[Request], batch: int, whole: bool) -> None:
        self._scheduler.max_num_running_reqs = self._scheduler.max_num_active_reqs = batch
        self._responses: dict[str, list[int]] = {}
        for request in requests:
            self._count += 1
            name = f"{self._count}-{request.name}"
            self._responses[name] = []
            self._add(name, request)
        self._logprobs: dict[str, list[float]] = {name: [] for name in self._responses}
        self._tokens = self._steps = self._preempted = 0
        self._seconds, self._least = 0.0, 1 if whole else min(batch, len(requests))

    def advance(self, seconds: float) -> bool:
        interrupted = getattr(self._drafter, "interrupted", None)
        if interrupted:
            interrupted()
        began, before = time.perf_counter(), self._steps
        while self._engine.get_num_unfinished_requests() >= self._least and time.perf_counter() < began + seconds:
            self._step()
        self._seconds += time.perf_counter() - began
        return self._steps > before

    def _step(self) -> None:
        for output in self._engine.step():
            new = output.outputs[0]
            self._responses[output.request_id].extend(new.token_ids)
            self._logprobs[output.request_id].extend(new.logprobs.logprobs)
            self._tokens += len(new.token_ids)
        self._steps += 1

    def finish(self) -> tuple[Any, ...]:
        if self._engine.has_unfinished_requests():
            self._engine.abort_request(list(self._responses))
            while self._engine.has_unfinished_requests():
                self._engine.step()
        responses, logprobs = list(self._responses.values()), list(self._logprobs.values())
        accounts = self._accounts(list(self._responses))
        return self._seconds, self._tokens, self._steps, responses, logprobs, accounts, self._preempted

    def call(self, method: str, *arguments: Any) -> Any:
        return self._engine.collective_rpc(method, args=arguments)[0]

    def about(self) -> dict[str, Any]:
        config, runner = self._engine.vllm_config, self._runner
        sizes = config.compilation_config.cudagraph_capture_sizes or []
        groups = [group for groups in getattr(runner, "attn_groups", ()) for group in groups]
        return {
            "started_s": round(self._started_s, 1),
            "runner": type(runner).__module__,
            "attention": sorted({group.backend.__name__ for group in groups}),
            "keyed": attached(runner)["keyed"],
            "drafter": type(self._drafter).__name__,
            "async": bool(config.scheduler_config.async_scheduling),
            "graphs": str(config.compilation_config.cudagraph_mode),
            "graph_sizes": [len(sizes), max(sizes, default=0)],
            "compile_s": round(float(getattr(config.compilation_config, "compilation_time", 0.0)), 1),
        }

    def pace(self, requests: list[Request], batch: int, drafts: list[int], steps: int) -> dict[str, list[float]]:
        self.begin(requests, batch, True)
        while any(not tokens for tokens in self._responses.values()) and self._engine.has_unfinished_requests():
            self._step()
        drafter = self._drafter
        found: dict[str, list[float]] = {}
        try:
            for count in drafts if drafter is not None else [0]:
                if drafter is not None:
                    drafter.propose = _wrong(count)
                for _ in range(WARM_STEPS):
                    self._step()
                before, times = self._tokens, list[float]()
                for _ in range(steps):
                    began = time.perf_counter()
                    self._step()
                    times.append(1000 * (time.perf_counter() - began))
                made = (self._tokens - before) / steps / batch
                found[str(count)] = [round(one, 3) for one in (statistics.median(times), min(times), made)]
        finally:
            if drafter is not None:
                vars(drafter).pop("propose", None)
            self.finish()
        return found

    def remember(self, prompt: str, context: list[int], past: list[list[int]]) -> None:
        import numpy as np

        drafter = self._drafter
        if hasattr(drafter, "remember"):
            from rhymed.histospec.index.builder import PastResponse

            rows = [PastResponse(np.array(response, np.int32), 0) for response in past]
            drafter.remember(prompt, context, rows)
            for row in rows:
                drafter.recent.add(row.tokens)
        elif hasattr(drafter, "suffix_cache"):
            for number, response in enumerate(past):
                name = f"{prompt}-{number}"
                drafter.suffix_cache.start_request(name, np.array(context, np.int32))
                drafter.suffix_cache.add_active_response(name, response)
                drafter.suffix_cache.stop_request(name)

    def forget(self) -> None:
        drafter = self._drafter
        if hasattr(drafter, "recent"):
            drafter.recent.clear()
        cache: Any = getattr(drafter, "suffix_cache", None)
        for name in list(cache.cached_requests) if cache else []:
            cache.evict_cached_response(name)

    def _preempting(self, *arguments: Any, **named: Any) -> None:
        self._preempted += 1
        self._preempt(*arguments, **named)

    def _accounts(self, names: list[str]) -> list[tuple[float, ...] | None]:
        from dataclasses import astuple

        accounts = getattr(self._drafter, "accounts", None)
        if accounts is None:
            return [None] * len(names)
        return [None if account is None else astuple(account) for account in accounts(names)]

    def _add(self, name: str, request: Request) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        extra = {"name": name, "prompt": request.history, "step": request.step, "key": request.seed}
        extra["min_p"] = request.min_p  # vLLM refuses its own together with drafts
        params = SamplingParams(
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            top_p=request.top_p,
            top_k=request.top_k,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            stop_token_ids=self._stops(),
            output_kind=RequestOutputKind.DELTA,
            extra_args={"rhymed": extra},
        )
        self._engine.add_request(name, TokensPrompt(prompt_token_ids=request.prompt), params)

    def _stops(self) -> list[int]:
        ids = self._engine.vllm_config.model_config.hf_config.eos_token_id
        return ids if isinstance(ids, list) else [ids]


def _wrong(count: int) -> Any:
    """A drafter's `propose`: a fixed number of tokens that are hardly ever drawn."""

    def propose(sampled: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[7] * count if tokens else [] for tokens in sampled]

    return propose
