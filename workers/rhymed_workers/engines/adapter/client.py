"""AsyncLLM of every release that rhymed works with: where calls, outputs and errors differ, it is decided here.

`rhymed.histospec.versions` has the differences. Imports vLLM only when used.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from rhymed.errors import DataError, EngineError
from rhymed.histospec.versions import Release, release_of, unknown
from rhymed.messages import SampleId
from rhymed_workers.engines.adapter.labels import Labels
from rhymed_workers.engines.base import NO_VERSION, Output
from rhymed_workers.engines.gpus.memory import EngineMemory
from rhymed_workers.engines.requests import output_of

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

    def __init__(self, llm: Any, release: Release, *, quantized: bool = False) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self.llm, self.memory = llm, EngineMemory(llm, quantized=quantized)
        self._dead: type[Exception] = EngineDeadError
        self._refusals: tuple[type[Exception], ...] = (*_exceptions(release.refusals), ValueError)
        self._failures: tuple[type[Exception], ...] = (*_exceptions(release.failures), EngineGenerateError)
        self._labels = None if release.labels else Labels()
        if self._labels is not None:
            watch(llm.output_processor, self._labels)

    async def generate(self, id: SampleId, tokens: Sequence[int], params: Any, request: str) -> Output:
        """`tokens`: of the prompt. Raises `DataError` if vLLM refuses the request, and `EngineError`."""
        try:
            completion = await self._completion(id, tokens, params, request)
            return output_of(completion, self.versions(request, completion))
        finally:
            if self._labels is not None:
                self._labels.forget(request)

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


def _exceptions(names: Sequence[str]) -> tuple[type[Exception], ...]:
    import vllm.exceptions

    return tuple(getattr(vllm.exceptions, name) for name in names)


def _version(label: str) -> int:
    return NO_VERSION if label == UNLABELLED else int(label)
