"""The ten most telling samples of a run: a stated rule, so that the same run always shows the same ones.

The rule is the order of `RULES`: each names a sample by what it is the most of, in words that the reader sees. Of
equals the first one by prompt, step and index counts. Training samples are looked at; where a run has none, those of
its evaluations. Pure, over the columns of a survey; whose answer was drafted the columns do not know, so the most
drafted one is looked for among the `LOOKED` longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.messages import EVAL
from rhymed_store.survey import Survey

MOST = 10
LOOKED = 24
SHORTEST = 8  # tokens, below which all being drafted says nothing

Rows = NDArray[np.int64]


class Pick(NamedTuple):
    """`nth`: of its prompt's samples of its step that have a record, by index."""

    row: int
    prompt: str
    step: int
    nth: int
    why: str


def telling(survey: Survey, share: Callable[[Pick], float | None] = lambda pick: None) -> list[Pick]:
    """At most `MOST`, each once. `share`: which part of a sample's tokens were accepted drafts; None: not known."""
    rows = _eligible(survey)
    found: dict[int, Pick] = {}
    rules = [*_extremes(survey, rows), *_changes(survey, rows), *_drafted(survey, rows, share), *_dropped(survey)]
    more = _more(survey, rows)
    for row, why in [*rules, *more]:
        if row not in found and len(found) < MOST:
            found[row] = pick(survey, row, why)
    return list(found.values())


def pick(survey: Survey, row: int, why: str) -> Pick:
    prompt, step = survey.prompt[row], survey.step[row]
    first = row
    while first and survey.prompt[first - 1] == prompt and survey.step[first - 1] == step:
        first -= 1
    return Pick(row, f"{int(prompt):016x}", int(step), row - first, why)


def _eligible(survey: Survey) -> Rows:
    kept = ~survey.dropped
    trained = np.flatnonzero(kept & (survey.step >= 0) & (survey.step < EVAL))
    return trained if len(trained) else np.flatnonzero(kept & (survey.step >= EVAL))


def _extremes(survey: Survey, rows: Rows) -> Iterator[tuple[int, str]]:
    """Best, worst, longest, shortest."""
    scored = rows[~np.isnan(survey.reward[rows])]
    if len(scored):
        rewards = survey.reward[scored]
        yield int(scored[np.argmax(rewards)]), f"the highest reward of the run, {rewards.max():g}"
        yield int(scored[np.argmin(rewards)]), f"the lowest reward of the run, {rewards.min():g}"
    if len(rows):
        lengths = survey.length[rows]
        yield int(rows[np.argmax(lengths)]), f"the longest response, {lengths.max():,} tokens"
        yield int(rows[np.argmin(lengths)]), f"the shortest response, {lengths.min():,} tokens"


def _changes(survey: Survey, rows: Rows) -> Iterator[tuple[int, str]]:
    """The prompts whose mean reward rose and fell most from their first step to their last: an answer of the last."""
    scored = rows[~np.isnan(survey.reward[rows])]
    if not len(scored):
        return
    groups = _groups(survey, scored)
    firsts: dict[int, tuple[float, float, int]] = {}  # prompt -> mean first, mean last, group last
    for number, (start, end) in enumerate(groups):
        prompt, mean = int(survey.prompt[scored[start]]), float(survey.reward[scored[start:end]].mean())
        before = firsts.get(prompt, (mean, mean, number))
        firsts[prompt] = (before[0], mean, number)
    changed = [(last - first, prompt, number) for prompt, (first, last, number) in firsts.items() if last != first]
    ends = (min(changed, key=lambda one: (-one[0], one[1])), min(changed)) if changed else ()
    for change, _, number in ends:
        start, end = groups[number]
        own = scored[start:end]
        row = own[np.argmax(survey.reward[own]) if change > 0 else np.argmin(survey.reward[own])]
        yield int(row), f"its prompt's mean reward changed by {change:+.3g} from its first step to its last"


def _groups(survey: Survey, rows: Rows) -> list[tuple[int, int]]:
    """Where in `rows` the samples of one prompt and step lie."""
    new = np.ones(len(rows), bool)
    new[1:] = (survey.prompt[rows[1:]] != survey.prompt[rows[:-1]]) | (
        survey.step[rows[1:]] != survey.step[rows[:-1]]
    )
    starts = np.flatnonzero(new)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True))


def _drafted(survey: Survey, rows: Rows, share: Callable[[Pick], float | None]) -> Iterator[tuple[int, str]]:
    longest = rows[np.lexsort((rows, -survey.length[rows]))][:LOOKED]
    known = [
        (found, -int(row), int(row))
        for row in longest
        if survey.length[row] >= SHORTEST and (found := share(pick(survey, int(row), ""))) is not None
    ]
    if known and max(known)[0] > 0:
        part, _, row = max(known)
        yield row, f"{part:.0%} of it were accepted drafts, the most among the {len(longest)} longest"


def _dropped(survey: Survey) -> Iterator[tuple[int, str]]:
    """The first and the last."""
    gone = np.flatnonzero(survey.dropped)
    if len(gone):
        order = gone[np.lexsort((gone, survey.step[gone]))]
        yield int(order[0]), f"the first of {len(gone):,} that were written and then dropped"
        yield int(order[-1]), f"the last of {len(gone):,} that were written and then dropped"


def _more(survey: Survey, rows: Rows) -> Iterator[tuple[int, str]]:
    """To fill the ten: the next best, worst and longest in turn, those of different prompts before the others."""
    scored = rows[~np.isnan(survey.reward[rows])]
    best = scored[np.lexsort((scored, -survey.reward[scored]))]
    worst = scored[np.lexsort((scored, survey.reward[scored]))]
    longest = rows[np.lexsort((rows, -survey.length[rows]))]
    orders = ((best, "highest rewards"), (worst, "lowest rewards"), (longest, "longest responses"))
    apart = tuple((order[_firsts(survey.prompt[order])], what) for order, what in orders)
    for some in (apart, orders):
        for place in range(MOST):
            for order, what in some:
                if place < len(order):
                    yield int(order[place]), f"among the {what}"


def _firsts(prompts: NDArray[np.uint64]) -> Rows:
    """Where each prompt comes first, in that order."""
    return np.sort(np.unique(prompts, return_index=True)[1])
