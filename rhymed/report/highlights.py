"""Selects ten notable samples of a run by fixed rules, so that the same run always shows the same ones.

`select` applies the rules in order; each gives candidates and a reason that the reader sees. The first candidate of a
prompt that is not shown yet is taken, else the first that is not shown yet. Candidates are training samples; a run
without any shows samples of its evaluations. Pure, over the columns of a survey. These do not contain drafts, so the
most drafted sample is searched among the `LOOKED` longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.messages import EVAL
from rhymed_store.inspect.columns import Survey

MOST = 10
LOOKED = 24
SHORTEST = 8  # tokens; a share of drafts means nothing in shorter responses

Rows = NDArray[np.int64]
Rule = tuple[Rows, str]  # candidates in order of preference, and the reason


class Pick(NamedTuple):
    """`nth`: position among the recorded samples of its prompt and step, by index."""

    row: int
    prompt: str
    step: int
    nth: int
    why: str


def select(survey: Survey, share: Callable[[Pick], float | None] = lambda pick: None) -> list[Pick]:
    """At most `MOST` samples. `share`: share of accepted drafts in a sample's tokens; None if unknown."""
    rows = _eligible(survey)
    picks: list[Pick] = []
    rules = [*_extremes(survey, rows), *_changes(survey, rows), *_drafted(survey, rows, share), *_dropped(survey)]
    for order, why in [*rules, *_more(survey, rows)]:
        row = _first_new(survey, order, [chosen.row for chosen in picks]) if len(picks) < MOST else None
        if row is not None:
            picks.append(pick(survey, row, why))
    return picks


def _first_new(survey: Survey, order: Rows, chosen: list[int]) -> int | None:
    fresh = order[~np.isin(order, chosen)]
    other_prompts = fresh[~np.isin(survey.prompt[fresh], survey.prompt[chosen])]
    return next((int(rows[0]) for rows in (other_prompts, fresh) if len(rows)), None)


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


def _extremes(survey: Survey, rows: Rows) -> Iterator[Rule]:
    """Best, worst, longest, shortest."""
    scored = rows[~np.isnan(survey.reward[rows])]
    if len(scored):
        rewards = survey.reward[scored]
        yield scored[rewards == rewards.max()], f"the highest reward of the run, {rewards.max():g}"
        yield scored[rewards == rewards.min()], f"the lowest reward of the run, {rewards.min():g}"
    if len(rows):
        lengths = survey.length[rows]
        yield rows[lengths == lengths.max()], f"the longest response, {lengths.max():,} tokens"
        yield rows[lengths == lengths.min()], f"the shortest response, {lengths.min():,} tokens"


def _changes(survey: Survey, rows: Rows) -> Iterator[Rule]:
    """The prompts whose mean reward rose and fell most between first and last step: a response of the last."""
    scored = rows[~np.isnan(survey.reward[rows])]
    if not len(scored):
        return
    groups = _groups(survey, scored)
    firsts: dict[int, tuple[float, float, int]] = {}  # prompt -> mean first, mean last, group last
    for number, (start, end) in enumerate(groups):
        prompt, mean = int(survey.prompt[scored[start]]), float(survey.reward[scored[start:end]].mean())
        before = firsts.get(prompt, (mean, mean, number))
        firsts[prompt] = (before[0], mean, number)
    changed = [(last - first, number) for first, last, number in firsts.values() if last != first]
    ends = dict.fromkeys((max(changed)[0], min(changed)[0])) if changed else ()
    for change in ends:
        own = [scored[slice(*groups[number])] for by, number in changed if by == change]
        best = np.argmax if change > 0 else np.argmin
        equals = np.array([one[best(survey.reward[one])] for one in own])
        yield equals, f"the mean reward of its prompt changed by {change:+.3g} from first to last step"


def _groups(survey: Survey, rows: Rows) -> list[tuple[int, int]]:
    """(start, end) in `rows` of each run of samples of one prompt and step."""
    new = np.ones(len(rows), bool)
    new[1:] = (survey.prompt[rows[1:]] != survey.prompt[rows[:-1]]) | (
        survey.step[rows[1:]] != survey.step[rows[:-1]]
    )
    starts = np.flatnonzero(new)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True))


def _drafted(survey: Survey, rows: Rows, share: Callable[[Pick], float | None]) -> Iterator[Rule]:
    longest = rows[np.lexsort((rows, -survey.length[rows]))][:LOOKED]
    known = [
        (found, int(row))
        for row in longest
        if survey.length[row] >= SHORTEST and (found := share(pick(survey, int(row), ""))) is not None
    ]
    if known and max(known)[0] > 0:
        part = max(known)[0]
        equals = np.array(sorted(row for found, row in known if found == part))
        yield equals, f"{part:.0%} accepted drafts, the most among the {len(longest)} longest"


def _dropped(survey: Survey) -> Iterator[Rule]:
    """The first and the last dropped sample, by step."""
    gone = np.flatnonzero(survey.dropped)
    if len(gone):
        steps = survey.step[gone]
        yield gone[steps == steps.min()], f"the first of {len(gone):,} that were generated and then dropped"
        yield gone[steps == steps.max()][::-1], f"the last of {len(gone):,} that were generated and then dropped"


def _more(survey: Survey, rows: Rows) -> Iterator[Rule]:
    """Fills up: the next best, worst and longest in turn."""
    scored = rows[~np.isnan(survey.reward[rows])]
    best = scored[np.lexsort((scored, -survey.reward[scored]))]
    worst = scored[np.lexsort((scored, survey.reward[scored]))]
    longest = rows[np.lexsort((rows, -survey.length[rows]))]
    orders = ((best, "highest rewards"), (worst, "lowest rewards"), (longest, "longest responses"))
    for _ in range(MOST):
        for order, kind in orders:
            yield order, f"among the {kind}"
