"""AsyncLLM of every release that rhymed works with: where calls, outputs and errors differ, it is decided here.

`rhymed.histospec.versions` has the differences. Imports vLLM only when used.

`Client` is the engine, `Labels` knows the version of each token, and `sampling_params` and `output_of` translate.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rhymed.core.errors import DataError, EngineError
from rhymed.core.messages import SampleId
from rhymed.core.steps import is_evaluation
from rhymed.core.tasks import watched
from rhymed.histospec.settings import KEY
from rhymed.histospec.versions import Release, release_of, unknown
from rhymed.inputs.stops import Cutter
from rhymed_workers.engines.base import NO_VERSION, Output, Task, shortened
from rhymed_workers.engines.memory import EngineMemory

log = logging.getLogger(__name__)

DIED = "the engine died; see its log"
UNLABELLED = "default"  # vLLM's label of weights that were never updated


def installed_release() -> Release:
    """Of the vLLM in this environment. Raises `EngineError`."""
    import vllm

    found = release_of(vllm.__version__)
    if found is None:
        raise EngineError(unknown(vllm.__version__))
    return found


class Client:
    """One AsyncLLM, and its memory."""

    def __init__(self, llm: Any, release: Release, *, keep_weights: bool = False) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self.llm, self.memory = llm, EngineMemory(llm, keep_weights=keep_weights)
        self._dead: type[Exception] = EngineDeadError
        self._refusals: tuple[type[Exception], ...] = (*_exceptions(release.refusals), ValueError)
        self._failures: tuple[type[Exception], ...] = (*_exceptions(release.failures), EngineGenerateError)
        self._labels = None if release.labels else Labels()
        if self._labels is not None:
            watch(llm.output_processor, self._labels)
        self._cutters: dict[str, Cutter] = {}  # by request
        self._aborts: set[asyncio.Task[None]] = set()
        after_step(llm.output_processor, self._cut)

    async def generate(
        self, id: SampleId, tokens: Sequence[int], params: Any, request: str, cutter: Cutter | None = None
    ) -> Output:
        """`tokens`: of the prompt. `cutter`: of the output. Raises `DataError` if vLLM refuses the request, and
        `EngineError`."""
        if cutter is not None:
            self._cutters[request] = cutter
        try:
            completion = await self._completion(id, tokens, params, request)
            output = output_of(completion, self.versions(request, completion))
            length = None if cutter is None else cutter.cut(output.tokens.tolist())
            return output if length is None else shortened(output, length)
        finally:
            self._cutters.pop(request, None)
            if self._labels is not None:
                self._labels.forget(request)

    def _cut(self) -> None:
        """After a step of the engine: ends requests whose text has a stop string. vLLM has no text here, and would
        keep tokens that the step makes after the string."""
        if not self._cutters:
            return
        for request, state in self.states().items():
            cutter = self._cutters.get(request)
            if cutter is None or cutter.cut(state.output_token_ids) is None:
                continue
            del self._cutters[request]
            failed = functools.partial(log.info, "%s was not aborted: %s", request)
            watched(self.llm.abort(request), failed, self._aborts)  # a dead engine fails its requests itself

    async def _completion(self, id: SampleId, tokens: Sequence[int], params: Any, request: str) -> Any:
        from vllm import TokensPrompt

        last = None
        try:
            async for output in self.llm.generate(TokensPrompt(prompt_token_ids=list(tokens)), params, request):
                last = output
        except self._dead as error:
            raise EngineError(DIED) from error
        except self._refusals as error:
            raise DataError(f"prompt {id.prompt}: vLLM refuses it: {error}") from error
        except self._failures as error:
            raise EngineError(f"sample {id}: the engine failed: {error.__cause__ or error}") from error
        assert last is not None, "vLLM ends a request with an output"
        return last.outputs[0]

    def versions(self, request: str, completion: Any) -> list[tuple[int, int]]:
        """(policy version, number of tokens) of a request that has ended, oldest first."""
        if self._labels is not None:
            return self._labels.spans(request, len(completion.token_ids))
        spans = [(_version(span.version), span.end - span.start) for span in completion.weight_versions or []]
        return [(version, count) for version, count in spans if count]

    async def update(self, version: int, file: dict[str, Any], done: Callable[[str], None]) -> None:
        """New weights between two steps: running requests pause, drop their keys and values, and continue.

        `file`: fields of `extension.File`. `done` is called with the name of each phase at its end. Raises whatever
        vLLM raises; the weights may then be half loaded.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self.llm.pause_generation(mode="keep", clear_cache=False)
        await self.memory.wake_weights()
        done("pause")
        await self.llm.start_weight_update()
        await self.llm.update_weights(WeightTransferUpdateRequest(update_info=file))
        done("load")
        if self._labels is None:
            await self.llm.finish_weight_update(str(version))
        else:
            await self.llm.finish_weight_update()
            self._labels.changed(version, time.monotonic())
        done("finish")
        if not await self.llm.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("the prefix cache still holds keys and values of the old weights")
        done("reset")
        await self.memory.wake_cache()
        await self.llm.resume_generation()
        done("resume")

    async def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of `extension.Extension` in vLLM's worker processes; the answers of all, by rank."""
        try:
            return await self.llm.collective_rpc(method, args=arguments)
        except self._dead as error:
            raise EngineError(DIED) from error

    def states(self) -> dict[str, Any]:
        """Request ids, each with the object that has the request's tokens so far."""
        states = self.llm.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer for state in states if state.detokenizer is not None}


def watch(processor: Any, labels: Labels) -> None:
    """`processor`: vLLM's `OutputProcessor`, which receives the outputs of each step with the time of its end: on
    the monotonic clock, which all processes of a machine share."""
    process = processor.process_outputs

    @functools.wraps(process)
    def process_outputs(outputs: Sequence[Any], at: float, *others: Any, **named: Any) -> Any:
        for output in outputs:
            state = processor.request_states.get(output.request_id)
            if state is not None and state.detokenizer is not None and output.new_token_ids:
                labels.made(state.external_req_id, state.detokenizer.num_output_tokens(), at)
        return process(outputs, at, *others, **named)

    processor.process_outputs = process_outputs


def after_step(processor: Any, act: Callable[[], None]) -> None:
    """`act` is called when the processor has received the outputs of a step."""
    process = processor.process_outputs

    @functools.wraps(process)
    def process_outputs(*given: Any, **named: Any) -> Any:
        result = process(*given, **named)
        act()
        return result

    processor.process_outputs = process_outputs


def _exceptions(names: Sequence[str]) -> tuple[type[Exception], ...]:
    import vllm.exceptions

    return tuple(getattr(vllm.exceptions, name) for name in names)


def _version(label: str) -> int:
    return NO_VERSION if label == UNLABELLED else int(label)


# Which version of the weights sampled which tokens, for engines that do not label them.
#
# An engine's outputs carry the time at which their step ended, and weights change only while no step runs: so the
# time implies the version. Pure: knows no engine; times are numbers of one clock, in seconds.

KEPT = 64  # changes of weights; outputs that wait for being processed are from the last one or two


class Labels:
    """Spans of tokens with one version, of each running request."""

    def __init__(self) -> None:
        self._times: list[float] = []  # of changes, ascending
        self._versions = [NO_VERSION]  # before the first change, and after each
        self._starts: dict[str, list[tuple[int, int]]] = {}  # request -> (version, its first token), ascending

    def changed(self, version: int, at: float) -> None:
        """`at`: after the end of the last step with the old weights, before the end of the first with the new."""
        self._times.append(at)
        self._versions.append(version)
        del self._times[:-KEPT], self._versions[: -KEPT - 1]

    def made(self, request: str, before: int, at: float) -> None:
        """A step that ended `at` made tokens of the request, which had `before` tokens until then."""
        version = self._versions[bisect_right(self._times, at)]
        starts = self._starts.setdefault(request, [])
        if not starts or starts[-1][0] != version:
            starts.append((version, before))

    def spans(self, request: str, tokens: int) -> list[tuple[int, int]]:
        """(version, number of tokens) of a request with so many tokens, oldest first."""
        spans, end = [], tokens
        for version, start in reversed(self._starts.get(request, [])):
            if start < end:
                spans.append((version, end - start))
                end = start
        return spans[::-1]

    def forget(self, request: str) -> None:
        self._starts.pop(request, None)


# Requests to vLLM: a task as vLLM's sampling parameters, and vLLM's answer as our output.
#
# Tokens are drawn from noise keyed by sample and position, or by vLLM's own sampler with one seed per sample. Log-
# probs are those of the processed distribution (after temperature, top-p, top-k, min-p), which is the one sampled
# from.


def sampling_params(task: Task, sampler: str, drafts: str, stop_tokens: list[int]) -> Any:
    """`sampler`: `rollout.sampler`; `drafts`: `drafts.method`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling, keyed = task.sampling, sampler == "keyed"
    extra: dict[str, Any] = {
        "prompt": task.id.prompt,
        "step": task.id.step,
        "name": str(task.id),
        "key": sampling.seed,
    }
    if keyed and sampling.min_p:
        extra["min_p"] = sampling.min_p  # vLLM refuses its own min_p together with drafts
    if keyed and sampling.cuts and not is_evaluation(task.id.step):
        extra["floor"] = True
    if task.prefix is not None:
        extra["prefix"] = len(task.prefix)
    if keyed and len(task.carried) and drafts != "none":
        extra["carried"] = np.asarray(task.carried).tolist()  # without the same noise they are poor drafts
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=0.0 if keyed else sampling.min_p,
        max_tokens=sampling.max_tokens,
        seed=None if keyed else sampling.seed,
        extra_args={KEY: extra},
        stop_token_ids=stop_tokens,
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def output_of(completion: Any, versions: list[tuple[int, int]]) -> Output:
    """From vLLM's `CompletionOutput`. `versions`: (policy version, number of tokens), oldest first."""
    return Output(
        tokens=np.array(completion.token_ids, np.uint32),
        logprobs=np.array(completion.logprobs.logprobs, np.float32),
        finish_reason=completion.finish_reason if completion.finish_reason in ("stop", "length") else "abort",
        versions=versions,
        floors=_floors(completion.logprobs.ranks),
    )


def _floors(ranks: Sequence[int]) -> NDArray[np.float32] | None:
    """From what the sampler wrote in the place of ranks, see `rhymed.histospec.sampling.sampler`: bits of negative
    numbers. What is not negative is a rank of vLLM's own, or nothing. None: there is no floor."""
    words = np.array(ranks, np.int64)
    if not (words < 0).any():
        return None
    return np.where(words < 0, words.astype(np.int32).view(np.float32), np.float32(-np.inf))
