"""Drafts from history in a simulated engine: tokens per forward, and what their verification costs. Pure.

A forward of an engine that drafts yields several tokens of a sample whose prompt has responses of an earlier step,
few of one whose prompt has none but its siblings, and takes longer than a plain one, by the drafts that it verifies.
All three depend on the number of requests: a drafter with a budget verifies fewer tokens for each of many requests.
Not modelled: that some responses agree with their history less than others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from rhymed.errors import DataError

Points = list[tuple[float, float]]

# `rhymed bench spec`, bench policy on a CPU, its second epoch: 1, 4, 16 and 64 requests.
TOKENS: Points = [(1, 3.6), (4, 4.1), (16, 3.9), (64, 4.1)]
SPEEDS: Points = [(1, 3.23), (4, 2.77), (16, 2.22), (64, 1.76)]  # over plain decoding
FIRST = 1.15  # tokens per forward in the first epoch: between 1.05 and 1.3


class Drafts:
    def __init__(self, tokens: Points, dearer: Points | None = None, first: float = FIRST) -> None:
        """`tokens`: (requests, tokens per forward of a request with history); `first`: of one without.

        `dearer`: (requests, time of a forward that verifies all these drafts, relative to a plain one); None: 1.
        Straight lines between the points, constant beyond them. Raises `DataError`.
        """
        dearer = dearer or [(1, 1.0)]
        if not tokens or first < 1 or min(value for _, value in [*tokens, *dearer]) < 1:
            raise DataError("drafts: a forward yields at least one token and is no faster than a plain one")
        self._tokens, self._dearer, self._first = sorted(tokens), sorted(dearer), first
        self._table: list[tuple[float, float]] = []

    def tokens(self, requests: int, *, seen: bool) -> float:
        """Per forward, of one request. `seen`: its prompt has responses of an earlier step."""
        return self._at(requests)[0] if seen else self._first

    def dearer(self, requests: int, seen: int) -> float:
        """Time of a forward relative to a plain one, if `seen` of the requests have history."""
        return 1.0 + (self._at(requests)[1] - 1.0) * seen / requests if requests else 1.0

    def _at(self, requests: int) -> tuple[float, float]:
        while len(self._table) <= requests:
            count = len(self._table)
            self._table.append((_between(self._tokens, count), _between(self._dearer, count)))
        return self._table[requests]


def _between(points: Points, at: float) -> float:
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]


def _on_cpu() -> Drafts:
    dearer = [(requests, tokens / speed) for (requests, tokens), (_, speed) in zip(TOKENS, SPEEDS, strict=True)]
    return Drafts(TOKENS, dearer)


NAMED = {"free": lambda: Drafts(TOKENS), "cpu": _on_cpu}
"""As measured: where verified tokens cost nothing, as while decoding is bound by memory; and at a CPU's cost."""


def read(name: str) -> Drafts:
    """A name of `NAMED`, or a JSON file {"tokens": [[requests, tokens], ...], "dearer": [...], "first": 1.15}.

    Raises `DataError`.
    """
    if name in NAMED:
        return NAMED[name]()
    try:
        tree = json.loads(Path(name).read_bytes())
        return Drafts(_points(tree["tokens"]), _points(tree.get("dearer", [])), float(tree.get("first", FIRST)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f'{name}: neither one of {", ".join(NAMED)} nor {{"tokens": [[requests, tokens]]}}: {error}'
        ) from None


def _points(rows: Iterable[tuple[float, float]]) -> Points:
    return [(float(requests), float(value)) for requests, value in rows]
