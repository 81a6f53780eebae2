"""vLLM as a contract describes it (`scripts/contract/vllm.py`): a call that it would refuse is a TypeError."""

from __future__ import annotations

import abc
import asyncio
import inspect
import json
import random
import sys
import time
from collections import deque
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "data" / "vllm"
RELEASES = ("0.26", "0.32", "0.33")


@cache
def contract(release: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{release}.json").read_text())


def signature_of(release: str, where: str, name: str) -> inspect.Signature | None:
    text = contract(release)["signatures"][where][name]
    if text is None:
        return None
    scope: dict[str, Any] = {}
    exec(f"def f({text.split('(', 1)[1]}: pass", scope)
    return inspect.signature(scope["f"])


def install(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the installed vLLM: the modules that the adapter imports."""
    expected = contract(release)
    errors = ModuleType("vllm.exceptions")
    for name, bases in expected["errors"].items():
        known = {**vars(errors), "ValueError": ValueError, "Exception": Exception}
        setattr(errors, name, type(name, tuple(known[base] for base in bases.split() if base in known), {}))
    engine = ModuleType("vllm.v1.engine.exceptions")
    for name, exists in expected["engine_errors"].items():
        if exists:
            setattr(engine, name, type(name, (Exception,), {}))
    base = ModuleType("vllm.distributed.weight_transfer.base")
    base.WeightTransferEngine = _abstract(release)  # type: ignore[attr-defined]
    base.WeightTransferUpdateRequest = lambda update_info: SimpleNamespace(update_info=update_info)  # type: ignore[attr-defined]
    factory = ModuleType("vllm.distributed.weight_transfer.factory")
    factory.WeightTransferEngineFactory = Factory()  # type: ignore[attr-defined]
    top = ModuleType("vllm")
    top.__version__, top.TokensPrompt = expected["version"], dict  # type: ignore[attr-defined]
    for module in (top, errors, engine, base, factory):
        parts = module.__name__.split(".")
        for depth in range(1, len(parts)):
            parent = ".".join(parts[:depth])
            if not isinstance(sys.modules.get(parent), _Package):
                monkeypatch.setitem(sys.modules, parent, _Package(parent))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    package = _Package("vllm")
    vars(package).update({name: value for name, value in vars(top).items() if not name.startswith("__")})
    package.__version__, package.exceptions = expected["version"], errors  # type: ignore[attr-defined]
    transfer = sys.modules["vllm.distributed.weight_transfer"]
    transfer.base, transfer.factory = base, factory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)


class _Package(ModuleType):
    """A package of ours; its modules are in `sys.modules`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []


class Factory:
    def __init__(self) -> None:
        self._registry: dict[str, Any] = {}

    def register_engine(self, name: str, engine: Any) -> None:
        self._registry[name] = lambda: engine


def _abstract(release: str) -> type:
    """The backends' base class, with the methods that a backend must have."""
    where = "vllm.distributed.weight_transfer.base:WeightTransferEngine"
    methods = {name: text for name, text in contract(release)["signatures"][where].items() if text}
    body: dict[str, Any] = {"__class_getitem__": classmethod(lambda cls, item: cls)}
    for name, text in methods.items():
        method = lambda *_: None  # noqa: E731
        body[name] = abc.abstractmethod(method) if "abstract" in text else method
    return abc.ABCMeta("WeightTransferEngine", (), body)


class Llm:
    """An AsyncLLM that makes a few tokens a step. As in vLLM, outputs are processed some time after their step, in
    another task, and a pause returns when no step runs, whether or not all outputs are processed."""

    def __init__(self, release: str, seed: int) -> None:
        self.release, self.random = release, random.Random(seed)
        self.output_processor = Processor(release)
        self.truth: dict[str, list[int]] = {}  # request -> version of each of its tokens
        self.version = -1
        self.label = "default"
        self.raises: Exception | None = None
        self.answers: list[Any] = []
        self.called: list[str] = []
        self._left: dict[str, int] = {}
        self._paused = False
        self._queue: deque[Any] = deque()
        self._tasks = [asyncio.ensure_future(self._steps()), asyncio.ensure_future(self._process())]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __getattr__(self, name: str) -> Any:
        bound = signature_of(self.release, "vllm.v1.engine.async_llm:AsyncLLM", name)
        if bound is None:
            raise AttributeError(f"vLLM {self.release} has no AsyncLLM.{name}")

        def call(*arguments: Any, **named: Any) -> Any:
            bound.bind(self, *arguments, **named)
            self.called.append(name)
            return getattr(self, f"_{name}")(*arguments, **named)

        return call

    async def _generate(self, prompt: Any, params: Any, request: str) -> Any:
        if self.raises is not None:
            raise self.raises
        state = State(request)
        self.truth[request], self._left[request] = [], params
        self.output_processor.request_states[f"{request}-0a1b2c3d"] = state
        await state.ended.wait()
        yield SimpleNamespace(outputs=[state.completion()])

    async def _pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("keep", False)
        self._paused = True

    async def _start_weight_update(self) -> None:
        assert self._paused

    async def _update_weights(self, request: Any) -> None:
        self.version = int(request.update_info["path"])

    async def _finish_weight_update(self, weight_version: str | None = None) -> None:
        self.label = weight_version or self.label

    async def _reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        return reset_running_requests

    async def _resume_generation(self) -> None:
        self._paused = False

    async def _collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        return self.answers

    def _shutdown(self, timeout: float) -> None:
        self._paused = True

    async def _steps(self) -> None:
        while True:
            await asyncio.sleep(0)
            if self._paused or not self._left:
                continue
            outputs = []
            for request in list(self._left):
                made = min(self.random.randint(0, 3), self._left[request])
                self.truth[request] += [self.version] * made
                self._left[request] -= made
                over = not self._left[request]
                outputs.append(Made(f"{request}-0a1b2c3d", [7] * made, over))
                if over:
                    del self._left[request]
            self._queue.append((outputs, time.monotonic(), self.label))

    async def _process(self) -> None:
        while True:
            for _ in range(self.random.choice([1, 1, 1, 30])):
                await asyncio.sleep(0)
            if self._queue:
                outputs, at, label = self._queue.popleft()
                labels = "weight_version" in self.output_processor.signature.parameters
                self.output_processor.process_outputs(
                    outputs, at, None, **({"weight_version": label} if labels else {})
                )


class Made(SimpleNamespace):
    def __init__(self, id: str, tokens: list[int], over: bool) -> None:
        super().__init__(request_id=id, new_token_ids=tokens, over=over)


class State:
    """A request in the process that asked for it. `starts`: as vLLM keeps its labels."""

    def __init__(self, request: str) -> None:
        self.external_req_id = request
        self.tokens: list[int] = []
        self.starts: list[tuple[str, int]] = []
        self.ended = asyncio.Event()
        self.detokenizer = SimpleNamespace(num_output_tokens=lambda: len(self.tokens), output_token_ids=self.tokens)

    def completion(self) -> Any:
        ends = [start for _, start in self.starts[1:]] + [len(self.tokens)]
        spans = [
            SimpleNamespace(version=label, start=start, end=end)
            for (label, start), end in zip(self.starts, ends, strict=False)
        ]
        logprobs = SimpleNamespace(logprobs=[0.0] * len(self.tokens), ranks=[1] * len(self.tokens))
        return SimpleNamespace(
            token_ids=self.tokens, logprobs=logprobs, finish_reason="length", weight_versions=spans or None
        )


class Processor:
    def __init__(self, release: str) -> None:
        self.request_states: dict[str, State] = {}
        found = signature_of(release, "vllm.v1.engine.output_processor:OutputProcessor", "process_outputs")
        assert found is not None
        self.signature = found

    def process_outputs(self, *arguments: Any, **named: Any) -> None:
        bound = self.signature.bind(self, *arguments, **named).arguments
        for output in bound["engine_core_outputs"]:
            state, label = self.request_states.get(output.request_id), bound.get("weight_version")
            if state is None:
                continue
            if output.new_token_ids and label and (not state.starts or state.starts[-1][0] != label):
                state.starts.append((label, len(state.tokens)))
            state.tokens += output.new_token_ids
            if output.over:
                del self.request_states[output.request_id]
                state.ended.set()
