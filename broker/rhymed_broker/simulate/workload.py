"""The length of every sample of a run: synthetic, from stated parameters, or recorded."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rhymed.core.errors import DataError
from rhymed.core.messages import SampleId
from rhymed.core.steps import is_training
from rhymed_broker.plan import ByLength, Plan, recent_steps


class Workload(Protocol):
    plan: Plan
    cap: int  # tokens; no response is longer

    def length(self, id: SampleId) -> int:
        """Response tokens, at least 1."""


class Shape(NamedTuple):
    """Log-normal lengths: a prompt's median varies between prompts and drifts from epoch to epoch."""

    prompts: int = 2048  # in the dataset
    prompts_per_step: int = 512
    group_size: int = 16
    steps: int = 20
    mean: float = 3000.0  # tokens
    prompt_sigma: float = 0.8
    sample_sigma: float = 0.35
    drift: float = 0.1  # sigma of a prompt's change from epoch to epoch
    cap: int = 32768
    seed: int = 0
    collect: float = 0.0  # share of the prompts, those with the longest responses, that share few steps


class Synthetic:
    """A pure function of the shape: the same for every policy."""

    def __init__(self, shape: Shape) -> None:
        self.cap, self._shape = shape.cap, shape
        ids = [_hex(f"prompt {number}") for number in range(shape.prompts)]
        epochs = -(-shape.steps * shape.prompts_per_step // shape.prompts) + 1
        recent = recent_steps(shape.prompts, shape.prompts_per_step)
        sampler = ByLength(shape.collect, recent, shape.seed) if shape.collect else None
        self.plan = Plan(ids, shape.prompts_per_step, shape.group_size, epochs, shape.steps, shape.seed, sampler)
        spread = math.hypot(shape.prompt_sigma, shape.sample_sigma)
        noise = np.random.default_rng(shape.seed)
        start = math.log(shape.mean) - spread**2 / 2 + shape.prompt_sigma * noise.standard_normal(shape.prompts)
        steps = shape.drift * noise.standard_normal((epochs, shape.prompts))
        steps[0] = 0.0
        self._medians = start + np.cumsum(steps, axis=0)  # [epochs, prompts], in log tokens
        self._numbers = {id: number for number, id in enumerate(ids)}
        self._steps: dict[int, NDArray[np.int64]] = {}

    def length(self, id: SampleId) -> int:
        lengths = self._steps.get(id.step)
        if lengths is None:
            lengths = self._steps[id.step] = self._step(id.step)
        return int(lengths[self._numbers[id.prompt], id.index])

    def _step(self, step: int) -> NDArray[np.int64]:
        """[prompts, group_size]."""
        noise = np.random.default_rng((self._shape.seed, step, 1))
        medians = self._medians[min(self.plan.epoch(self.plan.cursor(step)), len(self._medians) - 1)]
        spread = self._shape.sample_sigma * noise.standard_normal((len(medians), self._shape.group_size))
        lengths: NDArray[np.int64] = np.exp(medians[:, None] + spread).astype(np.int64).clip(1, self.cap)
        return lengths


class Recorded:
    """Lengths that a run had. An epoch that was not recorded repeats the last one that was."""

    def __init__(
        self,
        lengths: Iterable[tuple[str, int, int]],
        prompts_per_step: int,
        steps: int | None = None,
        collect: float = 0.0,
    ) -> None:
        """`lengths`: (prompt, step, response tokens) in the samples' order. Raises `DataError` without any."""
        self._lengths: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for prompt, step, tokens in lengths:
            self._lengths[prompt][step].append(tokens)
        if not self._lengths:
            raise DataError("the trace has no responses")
        groups = [group for steps in self._lengths.values() for group in steps.values()]
        self.cap = max(map(max, groups))
        group_size = max(map(len, groups))
        epochs = max(len(steps) for steps in self._lengths.values())
        prompts = sorted(self._lengths)
        each = min(prompts_per_step, len(prompts))
        sampler = ByLength(collect, recent_steps(len(prompts), each)) if collect else None
        self.plan = Plan(prompts, each, group_size, epochs, steps, sampler=sampler)

    def length(self, id: SampleId) -> int:
        """In the n-th epoch, the length in the prompt's n-th recorded step."""
        steps = self._lengths[id.prompt]
        group = steps[sorted(steps)[min(self.plan.epoch(self.plan.cursor(id.step)), len(steps) - 1)]]
        return group[id.index % len(group)]


class _Line(msgspec.Struct):
    """A line of a trace file, see rhymed_workers.engines.trace; `rhymed history export` writes the same fields."""

    step: int
    prompt: str = ""
    prompt_id: str = ""
    tokens: list[int] | int = 0
    length: int = 0


def read_trace(path: Path) -> list[tuple[str, int, int]]:
    """(prompt, step, response tokens) of JSONL with prompt, step, and tokens or length. Raises `DataError`."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    lengths = []
    for number, line in enumerate(lines, 1):
        try:
            row = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError as error:
            raise DataError(f"{path}:{number}: not a line of {{prompt, step, tokens}}: {error}") from None
        length = row.length or (len(row.tokens) if isinstance(row.tokens, list) else row.tokens)
        if length < 1:
            raise DataError(f"{path}:{number}: a response has at least one token")
        if is_training(row.step):
            lengths.append((_hex(row.prompt_id or row.prompt), row.step, length))
    return lengths


def _hex(name: str) -> str:
    """A prompt's id is 16 hex digits; any other name is hashed to one."""
    try:
        if len(name) == 16:
            int(name, 16)
            return name
    except ValueError:
        pass
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
