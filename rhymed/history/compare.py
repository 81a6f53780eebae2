"""`rhymed history compare`: have two runs the same samples, and where they part, was it a near tie?

Under position-keyed sampling a token is the argmax of log p + noise, and the noise is a function of run seed, sample,
position and token. Where two runs of one seed part, both have drawn with the same noise from what should be the same
distribution, so how far the scores of their two tokens lie apart tells arithmetic (a last bit decided) from a bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rhymed.errors import UnknownSample
from rhymed.history.folder import RunFolder
from rhymed.history.words import some
from rhymed.histospec.noise import gumbel_of
from rhymed.messages import GetSamples, SampleId
from rhymed_store.browse import Response

NEAR = 1e-3  # of scores: below it a last bit decides
SHOWN = 10


@dataclass(frozen=True)
class Difference:
    sample: str
    place: int  # the first response token that differs, from 0
    gap: float | None  # of the two tokens' scores; None: not known

    @property
    def near(self) -> bool:
        return self.gap is not None and self.gap < NEAR

    def __str__(self) -> str:
        how = "not known how close" if self.gap is None else f"scores {self.gap:.1g} apart"
        return f"{self.sample}: from token {self.place} on, {'a near tie, ' if self.near else ''}{how}"


@dataclass
class Comparison:
    """Samples of training steps and evaluations; imported history is not compared."""

    both: int = 0  # samples that both have
    tokens: int = 0  # of these, in the first run
    rewards: int = 0  # samples with the same tokens and different rewards
    only_first: int = 0
    only_second: int = 0
    different: list[Difference] = field(default_factory=list)

    @property
    def near(self) -> int:
        return sum(one.near for one in self.different)

    @property
    def same(self) -> bool:
        """But for near ties."""
        return not (self.only_first or self.only_second or self.rewards or len(self.different) > self.near)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "near": self.near, "same": self.same}


def compare(first: RunFolder, second: RunFolder) -> Comparison:
    found, seed = Comparison(), _seed(first, second)
    for one, other in _pairs(first, second):
        if one is None or other is None:
            found.only_first += other is None
            found.only_second += one is None
            continue
        found.both += 1
        found.tokens += len(one.tokens)
        if not np.array_equal(one.tokens, other.tokens):
            found.different.append(_difference(first, second, one, other, seed))
        elif one.info.reward != other.info.reward:
            found.rewards += 1
    return found


def render(found: Comparison, first: str, second: str) -> str:
    """In words, line by line."""
    lines = [f"{first} and {second}: {some(found.both, 'sample')} in both, {some(found.tokens, 'token')}"]
    for count, where in ((found.only_first, first), (found.only_second, second)):
        if count:
            lines.append(f"only in {where}: {some(count, 'sample')}")
    if found.rewards:
        lines.append(f"the same tokens and another reward: {some(found.rewards, 'sample')}")
    if not found.different:
        return "\n".join([*lines, "every sample has the same tokens" if found.both else "nothing to compare"])
    near = f", {found.near} of them in a near tie (scores less than {NEAR:g} apart)" if found.near else ""
    lines.append(
        f"{found.both - len(found.different):,} have the same tokens, {len(found.different):,} differ{near}:"
    )
    shown = sorted(found.different, key=lambda one: one.near)[:SHOWN]
    lines += [f"  {one}" for one in shown]
    if len(found.different) > len(shown):
        lines.append(f"  and {len(found.different) - len(shown):,} more")
    return "\n".join(lines)


def _pairs(first: RunFolder, second: RunFolder) -> Iterator[tuple[Response | None, Response | None]]:
    for prompt in sorted({*first.browse.ids(), *second.browse.ids()}):
        one, other = (
            {response.info.id: response for response in folder.browse.responses(prompt) if response.info.id.step >= 0}
            for folder in (first, second)
        )
        for id in sorted({*one, *other}):
            yield one.get(id), other.get(id)


def _seed(first: RunFolder, second: RunFolder) -> int | None:
    """Of the noise that both were drawn by."""
    configs = [folder.config for folder in (first, second)]
    seeds = {config.run.seed if config and config.rollout.sampler == "keyed" else None for config in configs}
    return seeds.pop() if len(seeds) == 1 else None


def _difference(first: RunFolder, second: RunFolder, one: Response, other: Response, seed: int | None) -> Difference:
    size = min(len(one.tokens), len(other.tokens))
    differ = np.flatnonzero(one.tokens[:size] != other.tokens[:size])
    place, gap = int(differ[0]) if len(differ) else size, None
    if seed is not None and place < size:
        position = one.info.prompt_length + place
        scores = [
            _score(folder, response, place, position, seed) for folder, response in ((first, one), (second, other))
        ]
        if None not in scores:
            gap = abs(scores[0] - scores[1])  # type: ignore[operator]
    return Difference(str(one.info.id), place, gap)


def _score(folder: RunFolder, response: Response, place: int, position: int, seed: int) -> float | None:
    """log p + noise of the token that came; None: its log-prob is no longer in the store."""
    from rhymed_workers.engine import seed_of

    id: SampleId = response.info.id
    try:
        _, (_, logprobs) = folder.browse.samples(GetSamples(samples=[id], logprobs=True))
    except UnknownSample:
        return None
    logprob = float(np.frombuffer(logprobs, np.float32)[place])
    return logprob + gumbel_of(seed_of(seed, id), position, int(response.tokens[place]))
