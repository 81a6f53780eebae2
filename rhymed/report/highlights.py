"""Selects ten notable samples of a run by fixed rules, so that the same run always shows the same ones.

`select` applies the rules in order; each gives candidates and a reason that the reader sees. The first candidate of a
prompt that is not shown yet is taken, else the first that is not shown yet. Candidates are training samples; a run
without any shows samples of its evaluations. Pure, over the columns of all samples. These do not contain drafts, so
the most drafted sample is searched among the `LOOKED` longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.messages import EVAL
from rhymed_store.inspect.columns import SampleColumns

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


def select(columns: SampleColumns, share: Callable[[Pick], float | None] = lambda pick: None) -> list[Pick]:
    """At most `MOST` samples. `share`: share of accepted drafts in a sample's tokens; None if unknown."""
    rows = _eligible(columns)
    picks: list[Pick] = []
    rules = [*_extremes(columns, rows), *_changes(columns, rows), *_drafted(columns, rows, share), *_dropped(columns)]
    for order, why in [*rules, *_more(columns, rows)]:
        row = _first_new(columns, order, [chosen.row for chosen in picks]) if len(picks) < MOST else None
        if row is not None:
            picks.append(pick(columns, row, why))
    return picks


def _first_new(columns: SampleColumns, order: Rows, chosen: list[int]) -> int | None:
    fresh = order[~np.isin(order, chosen)]
    other_prompts = fresh[~np.isin(columns.prompt[fresh], columns.prompt[chosen])]
    return next((int(rows[0]) for rows in (other_prompts, fresh) if len(rows)), None)


def pick(columns: SampleColumns, row: int, why: str) -> Pick:
    prompt, step = columns.prompt[row], columns.step[row]
    first = row
    while first and columns.prompt[first - 1] == prompt and columns.step[first - 1] == step:
        first -= 1
    return Pick(row, f"{int(prompt):016x}", int(step), row - first, why)


def _eligible(columns: SampleColumns) -> Rows:
    kept = ~columns.dropped
    trained = np.flatnonzero(kept & (columns.step >= 0) & (columns.step < EVAL))
    return trained if len(trained) else np.flatnonzero(kept & (columns.step >= EVAL))


def _extremes(columns: SampleColumns, rows: Rows) -> Iterator[Rule]:
    scored = rows[~np.isnan(columns.reward[rows])]
    if len(scored):
        rewards = columns.reward[scored]
        yield scored[rewards == rewards.max()], f"the highest reward of the run, {rewards.max():g}"
        yield scored[rewards == rewards.min()], f"the lowest reward of the run, {rewards.min():g}"
    if len(rows):
        lengths = columns.length[rows]
        yield rows[lengths == lengths.max()], f"the longest response, {lengths.max():,} tokens"
        yield rows[lengths == lengths.min()], f"the shortest response, {lengths.min():,} tokens"


def _changes(columns: SampleColumns, rows: Rows) -> Iterator[Rule]:
    """The prompts whose mean reward rose and fell most between first and last step: a response of the last."""
    scored = rows[~np.isnan(columns.reward[rows])]
    if not len(scored):
        return
    groups = _groups(columns, scored)
    firsts: dict[int, tuple[float, float, int]] = {}  # prompt -> mean first, mean last, group last
    for number, (start, end) in enumerate(groups):
        prompt, mean = int(columns.prompt[scored[start]]), float(columns.reward[scored[start:end]].mean())
        before = firsts.get(prompt, (mean, mean, number))
        firsts[prompt] = (before[0], mean, number)
    changed = [(last - first, number) for first, last, number in firsts.values() if last != first]
    ends = dict.fromkeys((max(changed)[0], min(changed)[0])) if changed else ()
    for change in ends:
        own = [scored[slice(*groups[number])] for by, number in changed if by == change]
        best = np.argmax if change > 0 else np.argmin
        equals = np.array([one[best(columns.reward[one])] for one in own])
        yield equals, f"the mean reward of its prompt changed by {change:+.3g} from first to last step"


def _groups(columns: SampleColumns, rows: Rows) -> list[tuple[int, int]]:
    """(start, end) in `rows` of each run of samples of one prompt and step."""
    new = np.ones(len(rows), bool)
    new[1:] = (columns.prompt[rows[1:]] != columns.prompt[rows[:-1]]) | (
        columns.step[rows[1:]] != columns.step[rows[:-1]]
    )
    starts = np.flatnonzero(new)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True))


def _drafted(columns: SampleColumns, rows: Rows, share: Callable[[Pick], float | None]) -> Iterator[Rule]:
    longest = rows[np.lexsort((rows, -columns.length[rows]))][:LOOKED]
    known = [
        (found, int(row))
        for row in longest
        if columns.length[row] >= SHORTEST and (found := share(pick(columns, int(row), ""))) is not None
    ]
    if known and max(known)[0] > 0:
        part = max(known)[0]
        equals = np.array(sorted(row for found, row in known if found == part))
        yield equals, f"{part:.0%} accepted drafts, the most among the {len(longest)} longest"


def _dropped(columns: SampleColumns) -> Iterator[Rule]:
    """The first and the last dropped sample, by step."""
    gone = np.flatnonzero(columns.dropped)
    if len(gone):
        steps = columns.step[gone]
        yield gone[steps == steps.min()], f"the first of {len(gone):,} that were generated and then dropped"
        yield gone[steps == steps.max()][::-1], f"the last of {len(gone):,} that were generated and then dropped"


def _more(columns: SampleColumns, rows: Rows) -> Iterator[Rule]:
    """Fills up: the next best, worst and longest in turn."""
    scored = rows[~np.isnan(columns.reward[rows])]
    best = scored[np.lexsort((scored, -columns.reward[scored]))]
    worst = scored[np.lexsort((scored, columns.reward[scored]))]
    longest = rows[np.lexsort((rows, -columns.length[rows]))]
    orders = ((best, "highest rewards"), (worst, "lowest rewards"), (longest, "longest responses"))
    for _ in range(MOST):
        for order, kind in orders:
            yield order, f"among the {kind}"
