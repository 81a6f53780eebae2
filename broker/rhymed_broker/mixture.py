"""One endless sequence of prompts from one or several shuffled datasets. Pure: a position gives a prompt.

An epoch has as many prompts as all datasets together. Each dataset has a fixed number of them, its share by weight,
spread evenly: of D datasets, n prompts in a row have n times the share of each, within 1 + D times the share. A
dataset is passed repeatedly, each pass a permutation of its own, so a small one of a high weight is passed
several times an epoch, and a large one of a low weight in part. With weights in proportion to sizes, or with one
dataset, an epoch has every prompt once. The order depends only on the seed, the pass, the prompts' ids and the
shares, not on the order of rows or on a library's random generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from rhymed.config import Data
from rhymed.errors import DataError

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
KEPT_PASSES = 4  # permutations in memory, of each dataset

Order = npt.NDArray[np.intp]


class Shuffled:
    """One dataset, pass after pass. `prompts` are ids (16 hex digits)."""

    def __init__(self, prompts: Sequence[str], seed: int) -> None:
        self.prompts = sorted(prompts)
        self._seed = seed
        self._words = np.array([int(prompt, 16) for prompt in self.prompts], dtype=np.uint64)
        self._orders: dict[int, Order] = {}

    def at(self, number: int) -> str:
        """The prompt with this number, counted over all passes."""
        turn, place = divmod(number, len(self.prompts))
        return self.prompts[int(self.order(turn)[place])]

    def order(self, turn: int) -> Order:
        """The permutation of this pass."""
        if turn not in self._orders:
            if len(self._orders) >= KEPT_PASSES:
                del self._orders[min(self._orders)]
            keys = _mix(self._words ^ np.uint64(_key(self._seed, turn)))
            self._orders[turn] = np.argsort(keys, kind="stable")
        return self._orders[turn]


class Mixture:
    """`datasets`: (name, prompts, weight). Raises `DataError` where two share a prompt, or one would have none."""

    def __init__(self, datasets: Sequence[tuple[str, Sequence[str], float]], seed: int = 0) -> None:
        owners: dict[str, str] = {}
        for name, prompts, _ in datasets:
            for prompt in prompts:
                if owner := owners.get(prompt):
                    where = f"{owner} and {name}" if owner != name else name
                    raise DataError(f"the same prompt is in the dataset more than once ({where}): {prompt}")
                owners[prompt] = name
        self.prompts = owners.keys()
        self.size = len(owners)  # prompts of an epoch
        self.several = len(datasets) > 1
        self.shares = shares([weight for *_, weight in datasets], self.size)
        self._parts = [Shuffled(list(prompts), seed) for _, prompts, _ in datasets]
        for (name, *_), share in zip(datasets, self.shares, strict=True):
            if self.size and not share:
                raise DataError(f"{name}: of an epoch of {self.size} prompts its weight gives it none: raise it")
        # Prompt j of n comes at (j + 1/2) / n of the epoch.
        times = np.concatenate([(np.arange(share) + 0.5) / max(1, share) for share in self.shares])
        order = np.argsort(times, kind="stable")
        self._owner = np.repeat(np.arange(len(self.shares)), self.shares)[order]
        self._rank = np.concatenate([np.arange(share) for share in self.shares])[order]

    def at(self, position: int) -> str:
        epoch, place = divmod(position, self.size)
        owner = int(self._owner[place])
        return self._parts[owner].at(epoch * self.shares[owner] + int(self._rank[place]))

    def is_plain(self, position: int, count: int) -> bool:
        """Whether the next `count` prompts are of one dataset's pass, so that they differ."""
        return len(self._parts) == 1 and position % max(1, self.size) + count <= self.size

    def plain(self, position: int, count: int) -> list[str]:
        """The next `count` prompts, quickly, where they are plain."""
        epoch, start = divmod(position, max(1, self.size))
        part = self._parts[0]
        return [part.prompts[row] for row in part.order(epoch)[start : start + count]]

    def check_steps(self, prompts_per_step: int) -> None:
        """Raises `DataError` if a step would need more different prompts of a dataset than it has."""
        for part, share in zip(self._parts, self.shares, strict=True):
            most = (prompts_per_step + len(self._parts)) * share // self.size + 1  # in a row of this length
            if len(self._parts) > 1 and most > len(part.prompts):
                raise DataError(
                    f"a dataset of {len(part.prompts)} prompts has {share / self.size:.0%} of the weight: a step of"
                    f" {prompts_per_step} (rollout.prompts_per_step) would need up to {most} different ones of them;"
                    " lower its weight or add prompts"
                )


def mixture_of(data: Data, prompts: Sequence[Sequence[str]], seed: int) -> Mixture:
    """`prompts`: the ids of each of `data.parts`; empty where nothing is trained."""
    weights = [share.weight for share in data.datasets] or [1.0]
    names = [f"data.datasets[{number}]" for number in range(len(weights))] if data.datasets else ["data"]
    return Mixture(list(zip(names, prompts or [[] for _ in names], weights, strict=True)), seed)


def shares(weights: Sequence[float], size: int) -> list[int]:
    """`size` in proportion to the weights, in whole numbers: largest remainders, of equal ones the first."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    quotas = [size * weight / total for weight in exact]
    found = [int(quota) for quota in quotas]
    rest = sorted(range(len(found)), key=lambda number: (found[number] - quotas[number], number))
    for number in rest[: size - sum(found)]:
        found[number] += 1
    return found


def _key(seed: int, turn: int) -> int:
    return int(_mix(_mix(np.array([(seed * GOLDEN + turn + 1) & WORD], dtype=np.uint64)))[0])


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection, so different prompts have different keys."""
    words = words + np.uint64(GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
