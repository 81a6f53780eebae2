"""`rhymed history compare`: do two runs have the same samples, token for token? Reads both stores.

Whether a difference was a near tie is not known: that needs log-probs, which checkpoints delete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rhymed.core.errors import StoreDamaged
from rhymed.core.messages import SampleId
from rhymed.core.text import counted
from rhymed.records.history.folder import RunFolder
from rhymed.records.history.responses import runs_of
from rhymed_store.browse import Response

SHOWN = 10


@dataclass(frozen=True)
class Difference:
    sample: SampleId
    place: int  # the first response token that differs, from 0; people count from 1
    given: bool = False  # its environment wrote it: it answered otherwise

    def __str__(self) -> str:
        given = ", which its environment wrote" if self.given else ""
        return f"{self.sample}: from token {self.place + 1} on{given}"


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
    damaged: list[str] = field(default_factory=list)  # why prompts are left out
    different: list[Difference] = field(default_factory=list)  # by sample, earliest step first

    @property
    def same(self) -> bool:
        lacking = self.prompts or self.only_first or self.only_second or self.damaged
        return bool(self.both) and not (lacking or self.turns or self.rewards or self.different)

    def json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "sample": str(row.sample)} for row in self.different]
        return {**asdict(self), "different": rows, "same": self.same}


def compare(first: RunFolder, second: RunFolder) -> Comparison:
    """Prompts that cannot be read are left out, and listed in `damaged`."""
    found = Comparison()
    for prompt in sorted({*first.browse.ids(), *second.browse.ids()}):
        try:
            for one, other in _pairs(first, second, prompt):
                _add(found, one, other)
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
    same = found.both - found.prompts - len(found.different)
    lines.append(f"{same:,} have the same tokens, {len(found.different):,} differ; the earliest:")
    lines += [f"  {difference}" for difference in found.different[:SHOWN]]
    return "\n".join(lines)


def _pairs(first: RunFolder, second: RunFolder, prompt: str) -> Iterator[tuple[Response | None, Response | None]]:
    one, other = (
        {response.info.id: response for response in folder.browse.responses(prompt) if response.info.id.step >= 0}
        for folder in (first, second)
    )
    for id in sorted({*one, *other}):
        yield one.get(id), other.get(id)


def _add(found: Comparison, one: Response | None, other: Response | None) -> None:
    if one is None or other is None:
        found.only_first += other is None
        found.only_second += one is None
        return
    found.both += 1
    found.tokens += len(one.tokens)
    if not np.array_equal(one.prompt_tokens, other.prompt_tokens):
        found.prompts += 1
    elif not np.array_equal(one.tokens, other.tokens):
        found.different.append(_difference(one, other))
    elif (one.info.turns, one.info.forks) != (other.info.turns, other.info.forks):
        found.turns += 1
    elif one.info.reward != other.info.reward:
        found.rewards += 1


def _difference(one: Response, other: Response) -> Difference:
    size = min(len(one.tokens), len(other.tokens))
    differ = np.flatnonzero(one.tokens[:size] != other.tokens[:size])
    place = int(differ[0]) if len(differ) else size
    given = any(run.environment and run.start <= place < run.end for run in (*runs_of(one), *runs_of(other)))
    return Difference(one.info.id, place, given)
