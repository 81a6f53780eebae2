"""vLLM as the engine: AsyncLLM in this process, its core in a child process, weights by our file backend.

Tokens are drawn from noise that is keyed by sample and position, or by vLLM's own sampler with one seed a sample.
Log-probs are those of the processed distribution (after temperature, top-p, top-k, min-p), which is the one that was
sampled. Drafts come from the responses that the engine was told to remember. vLLM labels what each step produced with
the weights' version, so the spans in an output are exact also when weights changed while it ran.

How it is started, and what depends on the machine, is in `launch`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.config import Config
from rhymed.errors import DataError, EngineError
from rhymed.histospec.settings import KEY
from rhymed.messages import Drafting, SampleId
from rhymed_store.client import StoredSample
from rhymed_workers.engines.activity import PULSE, Pulse
from rhymed_workers.engines.base import NO_VERSION, Output, Rate, Task, Told
from rhymed_workers.engines.launch import arguments, end_children, environment, in_daemon_thread

LOAD_PATIENCE_S = 120.0  # for one weight update
ABORT_AGAIN_S = 0.01


class VllmEngine:
    """One AsyncLLM on the model in `folder`."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._llm: Any = None
        self._version = NO_VERSION
        self._running: dict[SampleId, str] = {}  # sample -> vLLM's request id
        self._finished_tokens = 0
        self._requests = 0
        self._rate = Rate()
        self._pulse = Pulse()
        self._updating = asyncio.Lock()
        self._starting: asyncio.Future[Any] | None = None
        self._closed = False

    @property
    def version(self) -> int:
        return self._version

    async def open(self) -> None:
        """Seconds to half a minute: imports and the model, twice."""
        self._stop_tokens = await asyncio.to_thread(_stop_tokens, self._folder)
        self._names = await asyncio.to_thread(_model_tensors, self._folder)
        self._starting = in_daemon_thread(self._start)
        try:
            self._llm = await asyncio.shield(self._starting)
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineError(f"vLLM did not start with {self._folder}: {error}; its log tells more") from error

    def _start(self) -> Any:
        environment()
        os.environ[PULSE] = str(self._pulse.path)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        if self._closed:
            return None
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(self._config, self._folder)))

    async def close(self) -> None:
        self._closed = True
        self._pulse.close()
        starting = self._starting
        if starting is None:
            return
        if self._llm is None and starting.done() and not starting.cancelled() and starting.exception() is None:
            self._llm = starting.result()
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown, timeout=2.0)
            self._llm.shutdown = lambda: None  # its finaliser calls it again, maybe when the modules are gone
            self._llm = self._starting = None
        await asyncio.to_thread(end_children)

    async def generate(self, task: Task) -> Output:
        from vllm import TokensPrompt
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self._requests += 1
        request = f"{task.id}#{self._requests}"
        self._running[task.id] = request
        prompt = TokensPrompt(prompt_token_ids=list(task.prompt))
        last = None
        try:
            with self._pulse.working():
                async for output in self._llm.generate(prompt, self._params(task), request):
                    last = output
        except EngineDeadError as error:
            raise EngineError("the engine died; its log tells why") from error
        except (VLLMClientError, ValueError) as error:
            raise DataError(f"prompt {task.id.prompt}: vLLM refuses it: {error}") from error
        except EngineGenerateError as error:
            raise EngineError(f"sample {task.id}: the engine failed: {error.__cause__ or error}") from error
        finally:
            if self._running.get(task.id) == request:
                del self._running[task.id]
        assert last is not None, "vLLM ends a request with an output"
        made = _output(last.outputs[0])
        self._finished_tokens += len(made.tokens)
        return made

    def cancel(self, id: SampleId) -> None:
        request = self._running.get(id)
        if request is not None:
            abort = asyncio.get_running_loop().create_task(self._abort(id, request))
            abort.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _abort(self, id: SampleId, request: str) -> None:
        """Until it has ended: vLLM knows a request a moment after `generate` began, and no end of it before that."""
        while self._running.get(id) == request:
            await self._llm.abort(request)
            await asyncio.sleep(ABORT_AGAIN_S)

    async def load(self, version: int, path: Path) -> dict[str, float]:
        """Running requests wait, forget their keys and values, and go on under the new weights."""
        from vllm.v1.engine.exceptions import EngineDeadError

        async with self._updating:
            await asyncio.to_thread(self._check, path)
            watch = _Stopwatch()
            try:
                async with asyncio.timeout(LOAD_PATIENCE_S):
                    await self._update(version, path, watch)
            except TimeoutError:
                raise EngineError(f"loading version {version} took more than {LOAD_PATIENCE_S:g} s") from None
            except EngineDeadError as error:
                raise EngineError(f"the engine died while it loaded version {version}") from error
            except Exception as error:  # half-loaded weights: this engine must not go on
                raise EngineError(f"version {version} could not be loaded from {path}: {error}") from error
            self._version = version
            return watch.splits

    def _check(self, path: Path) -> None:
        """vLLM would take a file that lacks a part of a merged parameter, and leave that part undefined."""
        lacking = sorted(self._names - _tensor_names(path))
        if lacking:
            raise EngineError(
                f"{path} lacks {len(lacking)} of the {len(self._names)} tensors of {self._folder}, first"
                f" {lacking[0]}: trainer and engine must have the same model"
            )

    async def _update(self, version: int, path: Path, watch: _Stopwatch) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.pause_generation(mode="keep", clear_cache=False)
        watch.split("pause")
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info={"path": str(path)}))
        watch.split("load")
        await self._llm.finish_weight_update(str(version))
        watch.split("finish")
        if not await self._llm.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("the prefix cache still holds keys and values of the old weights")
        watch.split("reset")
        await self._llm.resume_generation()
        watch.split("resume")

    def progress(self) -> dict[SampleId, int]:
        known = self._known()
        return {
            id: known[request].num_output_tokens() if request in known else 0 for id, request in self._running.items()
        }

    def written(self, starts: Mapping[SampleId, int]) -> dict[SampleId, NDArray[np.uint32]]:
        known = self._known()
        found = {id: known[request] for id in starts if (request := self._running.get(id, "")) in known}
        return {id: np.asarray(tokens.output_token_ids[starts[id] :], np.uint32) for id, tokens in found.items()}

    def _known(self) -> dict[str, Any]:
        """vLLM's request ids, each with what keeps the tokens that it has so far."""
        if self._llm is None:
            return {}
        states = self._llm.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer for state in states if state.detokenizer is not None}

    def stats(self) -> dict[str, float]:
        if self._llm is not None and self._llm.errored and not self._closed:
            raise EngineError("the engine died; its log tells why")
        done = self.progress()
        return {
            "rollout/tokens_per_s": self._rate.look(self._finished_tokens + sum(done.values())),
            "rollout/running": float(sum(count > 0 for count in done.values())),
            "rollout/waiting": float(sum(count == 0 for count in done.values())),
        }

    def seconds(self) -> Mapping[str, float]:
        return self._pulse.seconds()

    async def remember(self, prompt: str, tokens: Sequence[int], past: Sequence[StoredSample]) -> None:
        rows = [(one.info.id.step, one.info.reward, np.asarray(one.tokens, "<i4").tobytes()) for one in past]
        await self._call("remember", prompt, list(tokens), rows)

    async def drafting(self, ids: Sequence[SampleId]) -> list[Told]:
        if self._config.drafts.method == "none":
            return [Told()] * len(ids)
        told = await self._call("accounts", [str(id) for id in ids])
        return [Told(None if row is None else Drafting(*row), yields) for row, yields in told]

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Of the extension in vLLM's worker process."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return (await self._llm.collective_rpc(method, args=arguments))[0]
        except EngineDeadError as error:
            raise EngineError("the engine died; its log tells why") from error

    def _params(self, task: Task) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling, keyed = task.sampling, self._config.rollout.sampler == "keyed"
        told: dict[str, Any] = {
            "prompt": task.id.prompt,
            "step": task.id.step,
            "name": str(task.id),
            "key": sampling.seed,
        }
        if keyed and sampling.min_p:
            told["min_p"] = sampling.min_p  # vLLM refuses its own beside drafts
        if keyed and len(task.carried) and self._config.drafts.method != "none":
            told["carried"] = np.asarray(task.carried).tolist()  # without the same noise they are poor drafts
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=0.0 if keyed else sampling.min_p,
            max_tokens=sampling.max_tokens,
            seed=None if keyed else sampling.seed,
            extra_args={KEY: told},
            stop_token_ids=self._stop_tokens,
            logprobs=0,  # of the sampled token only
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


class _Stopwatch:
    def __init__(self) -> None:
        self.splits: dict[str, float] = {}
        self._at = time.perf_counter()

    def split(self, name: str) -> None:
        now = time.perf_counter()
        self.splits[name], self._at = now - self._at, now


def _output(done: Any) -> Output:
    spans = [(_version(span.version), span.end - span.start) for span in done.weight_versions or []]
    return Output(
        tokens=np.array(done.token_ids, np.uint32),
        logprobs=np.array(done.logprobs.logprobs, np.float32),
        finish_reason=done.finish_reason if done.finish_reason in ("stop", "length") else "abort",
        versions=[(version, count) for version, count in spans if count],
    )


def _version(label: str) -> int:
    return NO_VERSION if label == "default" else int(label)


def _stop_tokens(folder: Path) -> list[int]:
    """End-of-sequence ids; the generation config's word counts before the model's."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return [found] if isinstance(found, int) else list(found)
    return []


def _model_tensors(folder: Path) -> set[str]:
    """Names of the tensors that a file of weights must have."""
    names = {name for file in folder.glob("*.safetensors") for name in _tensor_names(file)}
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    return names - {"lm_head.weight"} if tied else names


def _tensor_names(file: Path) -> set[str]:
    """From the header of a safetensors file."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return set(json.loads(stream.read(size))) - {"__metadata__"}
