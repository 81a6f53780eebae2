"""Which version of the weights sampled which tokens, for engines that do not label them.

An engine's outputs carry the time at which their step ended, and weights change only while no step runs: so the time
implies the version. Pure: knows no engine; times are numbers of one clock, in seconds.
"""

from __future__ import annotations

from bisect import bisect_right

from rhymed_workers.engines.base import NO_VERSION

KEPT = 64  # changes of weights; outputs that wait for being processed are from the last one or two


class Labels:
    """Spans of tokens with one version, of each running request."""

    def __init__(self) -> None:
        self._times: list[float] = []  # of changes, ascending
        self._versions = [NO_VERSION]  # before the first change, and after each
        self._starts: dict[str, list[tuple[int, int]]] = {}  # request -> (version, its first token), ascending

    def changed(self, version: int, at: float) -> None:
        """`at`: after the end of the last step with the old weights, before the end of the first with the new."""
        self._times.append(at)
        self._versions.append(version)
        del self._times[:-KEPT], self._versions[: -KEPT - 1]

    def made(self, request: str, before: int, at: float) -> None:
        """A step that ended `at` made tokens of the request, which had `before` tokens until then."""
        version = self._versions[bisect_right(self._times, at)]
        starts = self._starts.setdefault(request, [])
        if not starts or starts[-1][0] != version:
            starts.append((version, before))

    def spans(self, request: str, tokens: int) -> list[tuple[int, int]]:
        """(version, number of tokens) of a request with so many tokens, oldest first."""
        spans, end = [], tokens
        for version, start in reversed(self._starts.get(request, [])):
            if start < end:
                spans.append((version, end - start))
                end = start
        return spans[::-1]

    def forget(self, request: str) -> None:
        self._starts.pop(request, None)
