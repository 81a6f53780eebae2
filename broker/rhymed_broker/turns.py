"""How many tokens the policy will write in a sample with turns. Pure: turns come in, expectations come out.

A `Forecast` of all that the policy writes in a sample knows the prompt's level, its drift, and how far the sample is;
it knows no turns. The number of the turn says more: many samples of a prompt have as many turns, and the turn after a
call differs from the call. So at turn n there are two corrections. By the run: what was left at turn n, over what the
forecast had said. By the prompt: what its own samples had left at turn n, with the run's value as a prior. What
environments write is no work of an engine, and does not count. Older steps fade, since the policy changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rhymed_broker.forecast import VISITS, Forecast, Lengths

PRIOR = 2.0  # samples of a prompt that the run's value counts as
SHRUNK = 512.0  # tokens that a correction of 1 counts as
FADE = 0.7  # weight of a sum after each step
RATIO = 4.0  # the largest correction of the run, and the inverse of the smallest


class Left:
    """Tokens that samples had left at the begin of a turn, and their number or what was forecast."""

    __slots__ = ("found", "weight")

    def __init__(self) -> None:
        self.found = self.weight = 0.0

    def add(self, found: float, weight: float = 1.0) -> None:
        self.found, self.weight = self.found + found, self.weight + weight

    def fade(self, by: float) -> None:
        self.found, self.weight = self.found * by, self.weight * by


class TurnForecast:
    """As `Forecast`, of samples with turns: all numbers are tokens that the policy writes."""

    def __init__(self, cap: int) -> None:
        """Raises ValueError if `cap`, tokens of a response, is less than 1."""
        self._whole = Forecast(cap)
        self._run: defaultdict[int, Left] = defaultdict(Left)  # by turn; `weight`: as they were forecast
        self._own: dict[str, dict[int, Left]] = {}  # prompt -> by turn; `weight`: samples
        self._seen: dict[str, int] = {}  # prompt -> the newest step in `_own`

    def remember(self, prompt: str, past: Sequence[tuple[int, int]], turns: Sequence[Sequence[int]] = ()) -> None:
        """`turns`: of each sample of `past`, the policy's tokens of each turn."""
        samples = [(step, lengths) for (step, _), lengths in zip(past, turns, strict=False) if lengths]
        self._whole.remember(prompt, [(step, sum(lengths)) for step, lengths in samples])
        self._own.pop(prompt, None)
        self._seen.pop(prompt, None)
        for step, lengths in samples:
            self._add(step, prompt, lengths)

    def open(self, step: int, prompts: Iterable[str]) -> None:
        self._whole.open(step, prompts)

    def finished(self, step: int, prompt: str, tokens: int, turns: Sequence[int] = ()) -> None:
        """`turns`: the policy's tokens of each turn; empty: it had one, of `tokens`."""
        lengths = [length for length in turns or [tokens] if length]
        if not lengths:
            return
        for turn, written, left in _begins(lengths):
            if turn > 1:
                self._run[turn].add(left, self._whole.left(step, prompt, written))
        self._whole.finished(step, prompt, sum(lengths))
        self._add(step, prompt, lengths)

    def running(self, step: int, prompt: str, tokens: Iterable[int]) -> None:
        self._whole.running(step, prompt, tokens)

    def expect(self, step: int, prompt: str) -> float:
        return self._whole.expect(step, prompt)

    def left(self, step: int, prompt: str, tokens: int, turns: Sequence[int] = ()) -> float:
        """Of a sample that has written `tokens`, ended `turns` among them. At most what the cap leaves."""
        turn, begun = len(turns) + 1, sum(turns)
        whole = self._whole.left(step, prompt, tokens) if tokens else self._whole.expect(step, prompt)
        if turn == 1:
            return whole
        run = self._run.get(turn)
        ratio = (run.found + SHRUNK) / (run.weight + SHRUNK) if run else 1.0
        prior = whole * min(RATIO, max(1.0 / RATIO, ratio))
        room = max(0.0, float(self._whole.cap - tokens))
        own = self._own.get(prompt, {}).get(turn)
        if own is None:
            return min(prior, room)
        at_begin = (own.found + PRIOR * (prior + tokens - begun)) / (own.weight + PRIOR)
        return min(max(at_begin - (tokens - begun), 1.0), room)

    def close(self, step: int) -> None:
        self._whole.close(step)
        for left in self._run.values():
            left.fade(FADE)

    def _add(self, step: int, prompt: str, lengths: Sequence[int]) -> None:
        own = self._own.setdefault(prompt, {})
        if self._seen.setdefault(prompt, step) != step:
            self._seen[prompt] = step
            for left in own.values():
                left.fade(1.0 / VISITS)
        for turn, _, tokens in _begins(lengths):
            if turn > 1:
                own.setdefault(turn, Left()).add(tokens)


def forecast_of(cap: int, *, turns: bool) -> Lengths:
    """`turns`: samples have them. Raises ValueError if `cap` is less than 1 token."""
    return TurnForecast(cap) if turns else Forecast(cap)


def _begins(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Of each turn its number, and the tokens before and from its begin."""
    written, left = 0, sum(lengths)
    for turn, length in enumerate(lengths, 1):
        yield turn, written, left
        written, left = written + length, left - length
