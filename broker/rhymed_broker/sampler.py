"""Which prompts of the sequence are passed over because little is learned from them, by their last group. Pure.

A prompt whose success rate was r is asked with the chance 4 r (1 - r), at least `least`: always where half of its
samples succeeded, rarely where all or none did. A prompt without a rate among the last `recent` steps is always
asked. Chances become decisions by a hash of seed, position and prompt. Invariant: a decision at a cursor depends only
on the rates of the steps below `Cursor.known`, which are final, so it is the same at any time, and after any restart.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable

from rhymed.config import Config

REACH = 1000  # steps that may be open at once: their draws know as many steps less than the newest

Rates = list[tuple[str, float]]
"""(prompt, share of its scored samples that succeeded), by prompt."""


class Sampler:
    """`success_from`: least reward of a success. `recent`: steps that a rate is remembered."""

    def __init__(self, least: float, success_from: float, recent: int, seed: int = 0) -> None:
        self.recent = recent
        self._least, self._success_from, self._seed = least, success_from, seed
        self._rates: dict[str, list[tuple[int, float]]] = {}  # prompt -> (step, rate), by step

    def reset(self) -> None:
        self._rates = {}

    def rates(self, scored: Iterable[tuple[str, float | None]]) -> Rates:
        """Of a step's samples: (prompt, reward)."""
        groups: dict[str, list[bool]] = {}
        for prompt, reward in scored:
            if reward is not None:
                groups.setdefault(prompt, []).append(reward >= self._success_from)
        return sorted((prompt, sum(right) / len(right)) for prompt, right in groups.items())

    def learn(self, step: int, rates: Rates) -> None:
        """Of a step whose prompts and rewards are final. Steps come in order, and again after a rollback."""
        oldest = step - 2 * self.recent - REACH
        for prompt, rate in rates:
            kept = [one for one in self._rates.get(prompt, []) if oldest <= one[0] < step]
            self._rates[prompt] = [*kept, (step, rate)]

    def recall(self, steps: Iterable[tuple[int, Rates]]) -> None:
        """A whole run at once, in the order of its steps: any earlier draw can be repeated."""
        for step, rates in steps:
            for prompt, rate in rates:
                self._rates.setdefault(prompt, []).append((step, rate))

    def passes_over(self, prompt: str, position: int, known: int) -> bool:
        """`known`: steps whose rates count."""
        rates = self._rates.get(prompt, [])
        last = bisect_left(rates, (known, -1.0)) - 1
        if last < 0 or rates[last][0] < known - self.recent:
            return False
        rate = rates[last][1]
        return self._number(prompt, position) >= max(self._least, 4 * rate * (1 - rate))

    def _number(self, prompt: str, position: int) -> float:
        """Between 0 and 1."""
        text = f"{self._seed}/{position}/{prompt}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64


def sampler_of(config: Config, size: int) -> Sampler | None:
    """`size`: prompts of an epoch. A rate is remembered for two epochs. None: every prompt is asked in its turn."""
    data = config.data
    if data.sampler == "uniform":
        return None
    recent = max(1, 2 * size // config.rollout.prompts_per_step)
    return Sampler(data.least_chance, data.success_from, recent, config.run.seed)
