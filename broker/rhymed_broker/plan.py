"""Which prompts a step trains on. Pure: a cursor into one endless sequence of prompts is all that a resume needs.

The sequence comes from `Mixture`: with one dataset, the concatenation of the epochs' permutations. Steps take their
prompts from it one after another: the rest of an epoch begins the next step, so no prompt is lost or repeated. No
step has a prompt twice: a prompt that the step already has is deferred, and the next step that may have it takes it
first. With several datasets a prompt waits once at most: refills may pass a small dataset more often than steps can
take from it, and what waits must not grow with the run. Without refills (`ledger/refill.py`) step k begins behind k *
prompts_per_step prompts, and the rest of the last epoch is too small for a step and is not used. `Sampler` passes
over prompts of which little is learned, or orders a pass by the lengths that its prompts had.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from rhymed.core.config import Config, Data
from rhymed.core.errors import DataError
from rhymed.core.messages import Cursor, SampleId


class Plan:
    """`prompts`: ids (16 hex digits), each once, or a mixture. Raises `DataError` if they are too few for one step.

    With `steps` = 0 nothing is trained, and `prompts` may be empty.
    """

    def __init__(
        self,
        prompts: Sequence[str] | Mixture,
        prompts_per_step: int,
        group_size: int,
        epochs: int,
        steps: int | None = None,
        seed: int = 0,
        sampler: Sampler | None = None,
    ) -> None:
        self._mixture = prompts if isinstance(prompts, Mixture) else Mixture([("data", prompts, 1.0)], seed)
        size = self._mixture.size
        if size < prompts_per_step and steps != 0:
            raise DataError(
                f"the dataset has {size} prompts, a step needs {prompts_per_step} different ones"
                " (rollout.prompts_per_step)"
            )
        self.size = size
        self.prompts_per_step = prompts_per_step
        self.group_size = group_size
        if steps != 0:
            self._mixture.check_steps(prompts_per_step)
        whole = epochs * size // prompts_per_step
        self.steps = whole if steps is None else min(steps, whole)
        self.sampler = sampler
        self._cursors = [Cursor()]  # of the first steps, without refills
        self._passes: dict[tuple[int, int], Sequence[str]] = {}  # (pass, steps known at its beginning) -> its order

    def prompts(self, step: int) -> list[str]:
        """The step's prompts without refills, in the order in which to begin them."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} is not in 0..{self.steps - 1}")
        return self.draw(self.cursor(step), self.prompts_per_step)[0]

    def samples(self, step: int) -> list[SampleId]:
        """Group after group."""
        return [SampleId(step, prompt, index) for prompt in self.prompts(step) for index in range(self.group_size)]

    def may_have(self, id: SampleId) -> bool:
        """False: no step has such a sample, whichever prompts it was refilled with."""
        return 0 <= id.index < self.group_size and id.prompt in self._mixture.prompts

    def cursor(self, step: int) -> Cursor:
        """Where the step's prompts begin if no step before it was refilled."""
        count = self.prompts_per_step
        while len(self._cursors) <= step:
            last = self._cursors[-1]
            plain = not last.deferred and self._mixture.is_plain(last.position, count)
            after = Cursor(position=last.position + count) if plain else self.draw(last, count)[1]
            self._cursors.append(after)
        return self._cursors[step]

    def draw(self, cursor: Cursor, count: int, without: Collection[str] = ()) -> tuple[list[str], Cursor]:
        """The next `count` prompts, none of `without` and none twice, and the cursor behind them.

        Fewer if the dataset has no others.
        """
        mixture, sampler = self._mixture, self.sampler
        count = min(count, mixture.size - len(set(without)))
        knows = sampler is not None and cursor.known > 0
        if not knows and not without and not cursor.deferred and mixture.is_plain(cursor.position, count):
            return mixture.plain(cursor.position, count), Cursor(position=cursor.position + count)
        drawn: list[str] = []
        held, deferred, position, ordered = set(without), list[str](), cursor.position, cursor.ordered
        waiting = set[str]()  # those of `deferred`

        def take(prompt: str) -> None:
            if len(drawn) < count and prompt not in held:
                drawn.append(prompt)
            elif not mixture.several or prompt not in waiting:
                deferred.append(prompt)
                waiting.add(prompt)
            held.add(prompt)

        for prompt in cursor.deferred:
            take(prompt)
        while len(drawn) < count:
            if position % mixture.size == 0:
                ordered = cursor.known
            prompt = self._at(position, ordered)
            if sampler is None or not knows or not sampler.passes_over(prompt, position, cursor.known):
                take(prompt)
            position += 1
        return drawn, Cursor(position=position, deferred=deferred, known=cursor.known, ordered=ordered)

    def _at(self, position: int, ordered: int) -> str:
        """The prompt at this place of the sequence, in the order that the sampler gives its pass."""
        if self.sampler is None or not ordered or self._mixture.several:
            return self._mixture.at(position)
        turn, place = divmod(position, self.size)
        if (turn, ordered) not in self._passes:
            if len(self._passes) >= KEPT_PASSES:
                del self._passes[next(iter(self._passes))]
            start = turn * self.size
            prompts = self._mixture.plain(start, self.size)
            self._passes[turn, ordered] = self.sampler.order(prompts, start, self.prompts_per_step, ordered)
        return self._passes[turn, ordered][place]

    def epoch(self, cursor: Cursor) -> int:
        """The epoch of most prompts of a step that begins here, from 0; on a tie, the earlier one."""
        return (cursor.drawn + (self.prompts_per_step - 1) // 2) // self._mixture.size


# What earlier steps say of the prompts of later ones. Pure.
#
# A prompt's last group gives one number, with `success` its success rate, with `length` the mean length of its
# responses. Invariant: what is drawn at a cursor depends only on the numbers of the steps below `Cursor.known` (for
# `length`: `Cursor.ordered`), which are final, so it is the same at any time, and after any restart.

REACH = 1000  # steps that may be open at once: their draws know as many steps less than the newest

Rates = list[tuple[str, float]]
"""(prompt, its number), by prompt."""

Scored = Iterable[tuple[str, float | None, int]]
"""Of a step's samples: (prompt, reward, response tokens)."""


class Sampler:
    """`recent`: steps that a number is remembered."""

    def __init__(self, recent: int, seed: int = 0) -> None:
        self.recent = recent
        self._seed = seed
        self._rates: dict[str, list[tuple[int, float]]] = {}  # prompt -> (step, number), by step

    def reset(self) -> None:
        self._rates = {}

    def number(self, reward: float, tokens: int) -> float:
        """Of a sample; a group's is the mean."""
        raise NotImplementedError

    def rates(self, scored: Scored) -> Rates:
        """Of a step's samples."""
        groups: dict[str, list[float]] = {}
        for prompt, reward, tokens in scored:
            if reward is not None:
                groups.setdefault(prompt, []).append(self.number(reward, tokens))
        return sorted((prompt, sum(numbers) / len(numbers)) for prompt, numbers in groups.items())

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

    def last(self, prompt: str, known: int) -> float | None:
        """The prompt's newest number of a step below `known`; None: it has none, or forgot it."""
        rates = self._rates.get(prompt, [])
        last = bisect_left(rates, (known, -math.inf)) - 1
        return rates[last][1] if last >= 0 and rates[last][0] >= known - self.recent else None

    def passes_over(self, prompt: str, position: int, known: int) -> bool:
        """Whether a prompt whose turn comes is not asked this time."""
        return False

    def order(self, prompts: Sequence[str], start: int, each: int, known: int) -> Sequence[str]:
        """The prompts of a pass that begins at position `start`, in which steps take `each`, in another order."""
        return prompts


class BySuccess(Sampler):
    """Passes over prompts of which little is learned.

    A prompt whose success rate was r is asked with the chance 4 r (1 - r), at least `least`: always where half of its
    samples succeeded, rarely where all or none did. A prompt without a rate is always asked. Chances become decisions
    by a hash of seed, position and prompt. `success_from`: least reward of a success.
    """

    def __init__(self, least: float, success_from: float, recent: int, seed: int = 0) -> None:
        super().__init__(recent, seed)
        self._least, self._success_from = least, success_from

    def number(self, reward: float, tokens: int) -> float:
        return float(reward >= self._success_from)

    def passes_over(self, prompt: str, position: int, known: int) -> bool:
        rate = self.last(prompt, known)
        if rate is None:
            return False
        return _number(self._seed, position, prompt) >= max(self._least, 4 * rate * (1 - rate))


class ByLength(Sampler):
    """Collects the prompts with the longest responses in few steps, so that the others do not wait for them.

    Of a pass the `share` of the prompts with the longest responses, sorted by length, are cut into parts of at most a
    step; each begins another step of the pass, chosen by seed and pass. All other prompts keep their order.
    """

    def __init__(self, share: float, recent: int, seed: int = 0) -> None:
        super().__init__(recent, seed)
        self._share = share

    def number(self, reward: float, tokens: int) -> float:
        return float(tokens)

    def order(self, prompts: Sequence[str], start: int, each: int, known: int) -> Sequence[str]:
        count = math.ceil(self._share * len(prompts))
        length_N = np.array([-math.inf if (last := self.last(prompt, known)) is None else last for prompt in prompts])
        least = np.partition(length_N, -count)[-count] if count else math.inf  # all are not sorted: there may be many
        found = np.flatnonzero((length_N >= least) & (length_N > -math.inf)).tolist()
        longest = [prompts[n] for n in sorted(found, key=lambda n: (-length_N[n], prompts[n]))[:count]]
        whole = range(-start % each, len(prompts) - each + 1, each)  # where the pass's whole steps begin
        parts = [longest[first : first + each] for first in range(0, len(longest), each)][: len(whole)]
        places = sorted(whole, key=lambda place: _number(self._seed, start + place, "length"))
        taken = {
            place + n: prompt for place, part in zip(places, parts, strict=False) for n, prompt in enumerate(part)
        }
        collected = set(taken.values())
        others = (prompt for prompt in prompts if prompt not in collected)
        return [taken[place] if place in taken else next(others) for place in range(len(prompts))]


def _number(seed: int, position: int, word: str) -> float:
    """Between 0 and 1."""
    text = f"{seed}/{position}/{word}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64


def sampler_of(config: Config, size: int) -> Sampler | None:
    """`size`: prompts of an epoch. None: every prompt is asked in its turn."""
    data, recent = config.data, recent_steps(size, config.rollout.prompts_per_step)
    match data.sampler:
        case "success":
            return BySuccess(data.least_chance, data.success_from, recent, config.run.seed)
        case "length":
            return ByLength(LONGEST, recent, config.run.seed)
        case _:
            return None


def recent_steps(size: int, prompts_per_step: int) -> int:
    """How long a number is remembered: two epochs."""
    return max(1, 2 * size // prompts_per_step)


LONGEST = 0.05  # share of the prompts that `length` collects; docs/notebook.md has others


# One endless sequence of prompts from one or several shuffled datasets. Pure: a position gives a prompt.
#
# An epoch has as many prompts as all datasets together. Each dataset has a fixed number of them, its share by weight,
# spread evenly: of D datasets, n prompts in a row have n times the share of each, within 1 + D times the share. A
# dataset is passed repeatedly, each pass a permutation of its own, so a small one of a high weight is passed several
# times an epoch, and a large one of a low weight in part. With weights in proportion to sizes, or with one dataset,
# an epoch has every prompt once. The order depends only on the seed, the pass, the prompts' ids and the shares, not
# on the order of rows or on a library's random generator.

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
