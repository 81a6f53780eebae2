"""vLLM as the engine: AsyncLLM in this process, its core in a child process, weights through our file backend.

Drafts come from the responses passed to `remember`. The tokens of each step are labelled with the version of the
weights, so the versions in an output are exact even if weights changed while it was generated. How vLLM is started is
in `launch`; how requests are translated, and in what its releases differ, is in `client`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Config
from rhymed.core.errors import EngineError, Unstartable
from rhymed.core.messages import Drafting, SampleId
from rhymed.core.run.layout import layout_of
from rhymed.core.service import logfile
from rhymed.core.tasks import watched
from rhymed.core.text import quoted
from rhymed.inputs.render import load_tokenizer
from rhymed.inputs.stops import Cutter, Stops, stops_of
from rhymed.placement.gpus import transport
from rhymed_store.client import StoredSample
from rhymed_workers.engines.activity import ACTIVITY_FILE, ActivityReader
from rhymed_workers.engines.base import NO_VERSION, DraftReport, Output, Task, Throughput
from rhymed_workers.engines.client import DIED, Client, installed_release, sampling_params
from rhymed_workers.engines.launch import (
    arguments,
    attachment_problem,
    end_children,
    environment,
    environment_problem,
    in_daemon_thread,
    supported,
    take_runner,
)
from rhymed_workers.engines.startup import explain, size_of
from rhymed_workers.lora.folder import digest, entries, file_entries, read_about
from rhymed_workers.lora.merge import Adapter, shapes

log = logging.getLogger(__name__)

CLIENT = logging.getLogger("vllm.v1.engine.async_llm")

LOAD_PATIENCE_S = 120.0  # for one weight update, besides the time to read the file
SLOWEST_LOAD = 1e8  # bytes per second
ABORT_AGAIN_S = 0.01


class VllmEngine:
    """One AsyncLLM on the model in `folder`."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._transport = transport(config)
        self._llm: Any = None
        self._client: Client | None = None
        self._version = NO_VERSION
        self._running: dict[SampleId, str] = {}  # sample -> vLLM's request id
        self._aborts: set[asyncio.Task[None]] = set()
        self._finished_tokens = 0
        self._requests = 0
        self._throughput = Throughput()
        self._activity = ActivityReader()
        self._updating = asyncio.Lock()
        self._starting: asyncio.Future[Any] | None = None
        self._closed = False

    @property
    def version(self) -> int:
        return self._version

    async def open(self) -> None:
        """Seconds to half a minute: imports and the model, twice."""
        self._tokenizer = await asyncio.to_thread(load_tokenizer, self._config.model, self._folder)
        self._stops = await asyncio.to_thread(self._found_stops)
        self._names = await asyncio.to_thread(_model_tensors, self._folder)
        log, begun = logfile.current_file(), size_of(logfile.current_file())
        self._starting = in_daemon_thread(self._start)
        try:
            self._llm = await asyncio.shield(self._starting)
        except (RuntimeError, ValueError, OSError) as error:
            run = layout_of(self._config).folder
            raise Unstartable(
                f"vLLM did not start with {self._folder}: {explain(error, log, begun)}; its own lines:"
                f" rhymed logs {quoted(run)} --libraries"
            ) from error
        if self._llm is None:
            return
        more = bool(self._config.rollout.quantization) or self._config.drafts.by_engine  # than a weights file has
        self._client = Client(self._llm, installed_release(), keep_weights=more)
        if wrong := attachment_problem(await self._client.call("attached"), **self._wanted):
            raise EngineError(wrong)

    @property
    def _wanted(self) -> dict[str, bool]:
        """Parts of ours in vLLM's processes."""
        return {"keyed": self._config.rollout.sampler == "keyed", "drafts": self._config.drafts.method != "none"}

    def _found_stops(self) -> Stops:
        stops = stops_of(self._config, self._folder, self._tokenizer)
        if stops.added is not None:
            words = self._tokenizer.convert_ids_to_tokens(stops.added)
            log.info("a turn also ends with %s, as in the chat template: the model's folder does not name it", words)
        return stops

    def _start(self) -> Any:
        rollout = self._config.rollout
        if wrong := environment_problem(os.environ, runner=rollout.runner, exact=rollout.exact):
            raise EngineError(wrong)
        environment(exact=rollout.exact)
        installed_release()
        self._config = supported(self._config, self._folder)
        runner = take_runner(self._config)
        os.environ[ACTIVITY_FILE] = str(self._activity.path)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        if self._closed:
            return None
        CLIENT.setLevel(logging.NOTSET)
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(self._config, self._folder, runner)))

    async def close(self) -> None:
        self._closed = True
        self._activity.close()
        starting = self._starting
        if starting is None:
            return
        if self._llm is None and starting.done() and not starting.cancelled() and starting.exception() is None:
            self._llm = starting.result()
        if self._llm is not None:
            CLIENT.setLevel(
                logging.CRITICAL
            )  # it logs the end of the core as an error even when the end was requested
            await asyncio.to_thread(self._llm.shutdown, timeout=2.0)
            self._llm.shutdown = lambda: None  # its finaliser calls it again, maybe when the modules are gone
            self._llm = self._client = self._starting = None
        await asyncio.to_thread(end_children)

    async def generate(self, task: Task) -> Output:
        self._requests += 1
        request = f"{task.id}#{self._requests}"
        self._running[task.id] = request
        params = sampling_params(task, self._config.rollout.sampler, self._config.drafts.method, self._stops.ids)
        try:
            with self._activity.working():
                tokens = [*task.prompt, *(task.prefix or ())]
                stop = list(task.sampling.stop)
                cutter = Cutter(self._tokenizer, stop) if stop else None
                result = await self._open.generate(task.id, tokens, params, request, cutter)
        finally:
            if self._running.get(task.id) == request:
                del self._running[task.id]
        self._finished_tokens += len(result.tokens)
        return result

    def cancel(self, id: SampleId) -> None:
        request = self._running.get(id)
        if request is not None:
            watched(self._abort(id, request), partial(log.info, "%s was not aborted: %s", request), self._aborts)

    async def _abort(self, id: SampleId, request: str) -> None:
        """Repeated until the request has ended: vLLM ignores an abort that arrives before it knows the request."""
        while self._running.get(id) == request:
            await self._llm.abort(request)
            await asyncio.sleep(ABORT_AGAIN_S)

    async def load(self, version: int, path: Path) -> dict[str, float]:
        """Running requests pause, drop their keys and values, and continue under the new weights."""
        from vllm.v1.engine.exceptions import EngineDeadError

        async with self._updating:
            adapter = await asyncio.to_thread(self._check, path)
            file = {"path": str(path), "base": str(self._folder) if adapter else "", "transport": self._transport}
            watch, patience_s = _SplitTimer(), LOAD_PATIENCE_S + os.stat(path).st_size / SLOWEST_LOAD
            try:
                async with asyncio.timeout(patience_s):
                    await self._open.update(version, file, watch.split)
            except TimeoutError:
                raise EngineError(f"loading version {version} took more than {patience_s:.0f} s") from None
            except EngineDeadError as error:
                raise EngineError(f"the engine died while it loaded version {version}") from error
            except Exception as error:  # half-loaded weights: this engine must not continue
                raise EngineError(f"version {version} could not be loaded from {path}: {error}") from error
            self._version = version
            if self._transport != "file":
                log.info("version %d: weights from %s", version, await self._open.call("weights_from"))
            return watch.splits

    async def sleep(self) -> dict[str, float]:
        """Running requests stay, and lose their keys and values."""
        async with self._updating:
            watch = _SplitTimer()
            try:
                async with asyncio.timeout(LOAD_PATIENCE_S):
                    await self._open.memory.free()
            except Exception as error:  # memory may be half freed: this engine must not continue
                raise EngineError(f"the engine could not free its memory: {error!r}") from error
            watch.split("sleep")
            return watch.splits

    def _check(self, path: Path) -> bool:
        """Whether the file is an adapter. Raises `EngineError` if it does not fit the model.

        vLLM accepts a file that lacks a part of a merged parameter, and leaves that part undefined.
        """
        if read_about(path) is not None:
            wrong = Adapter(path).problem(shapes(self._folder), digest(self._folder))
            if wrong:
                raise EngineError(f"{wrong}: trainer and engine must have the same model")
            return True
        missing = sorted(self._names - file_entries(path).keys())
        if missing:
            raise EngineError(
                f"{path} lacks {len(missing)} of the {len(self._names)} tensors of {self._folder}, first"
                f" {missing[0]}: trainer and engine must have the same model"
            )
        return False

    def progress(self) -> dict[SampleId, int]:
        states = self._states()
        return {
            id: states[request].num_output_tokens() if request in states else 0
            for id, request in self._running.items()
        }

    def written(self, starts: Mapping[SampleId, int]) -> dict[SampleId, NDArray[np.uint32]]:
        states = self._states()
        running = {id: states[request] for id in starts if (request := self._running.get(id, "")) in states}
        return {id: np.asarray(state.output_token_ids[starts[id] :], np.uint32) for id, state in running.items()}

    def _states(self) -> dict[str, Any]:
        return self._client.states() if self._client is not None else {}

    def stats(self) -> dict[str, float]:
        if self._llm is not None and self._llm.errored and not self._closed:
            raise EngineError(DIED)
        progress = self.progress()
        return {
            "rollout/tokens_per_s": self._throughput.update(self._finished_tokens + sum(progress.values())),
            "rollout/running": float(sum(count > 0 for count in progress.values())),
            "rollout/waiting": float(sum(count == 0 for count in progress.values())),
        }

    def seconds(self) -> Mapping[str, float]:
        return self._activity.seconds()

    async def remember(self, prompt: str, tokens: Sequence[int], past: Sequence[StoredSample]) -> None:
        rows = [(sample.info.id.step, np.asarray(sample.tokens, "<i4").tobytes()) for sample in past]
        await self._call("remember", prompt, list(tokens), rows)

    async def drafting(self, ids: Sequence[SampleId]) -> list[DraftReport]:
        if self._config.drafts.method == "none":
            return [DraftReport()] * len(ids)
        accounts = await self._call("accounts", [str(id) for id in ids])
        return [DraftReport(None if row is None else Drafting(*row), yields) for row, yields in accounts]

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `Extension` in all of vLLM's worker processes. The answer of the first that has one."""
        answers = await self._open.call(method, *arguments)
        return next((answer for answer in answers if answer is not None), None)

    @property
    def _open(self) -> Client:
        assert self._client is not None, "the engine is opened before it is used"
        return self._client


class _SplitTimer:
    def __init__(self) -> None:
        self.splits: dict[str, float] = {}
        self._at = time.perf_counter()

    def split(self, name: str) -> None:
        now = time.perf_counter()
        self.splits[name], self._at = now - self._at, now


def _model_tensors(folder: Path) -> set[str]:
    """Names of the tensors that a weights file must contain."""
    names = set(entries(folder))
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    return names - {"lm_head.weight"} if tied else names
