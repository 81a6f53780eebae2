"""Which prompts a step trains on. Pure: a cursor into one endless sequence of prompts is all that a resume needs.

The sequence is the concatenation of the epochs' permutations. Steps take their prompts from it one after another: the
rest of an epoch begins the next step, so no prompt is lost or repeated. No step has a prompt twice: a prompt that the
step already has is deferred, and the next step that may have it takes it first. Without refills (`ledger/draws.py`)
step k begins behind k * prompts_per_step prompts, and the rest of the last epoch is too small for a step and is not
used. The order depends only on the seed, the epoch and the prompts' ids, not on the dataset's row order or on a
library's random generator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from rhymed.errors import DataError
from rhymed.messages import Cursor, SampleId

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
KEPT_EPOCHS = 4  # permutations in memory

Order = npt.NDArray[np.intp]


class Plan:
    """`prompts` are ids (16 hex digits), each once. Raises `DataError` if they are too few for one step.

    With `steps` = 0 nothing is trained, and `prompts` may be empty.
    """

    def __init__(
        self,
        prompts: Sequence[str],
        prompts_per_step: int,
        group_size: int,
        epochs: int,
        steps: int | None = None,
        seed: int = 0,
    ) -> None:
        if len(set(prompts)) != len(prompts):
            raise DataError("the same prompt is in the dataset more than once")
        if len(prompts) < prompts_per_step and steps != 0:
            raise DataError(
                f"the dataset has {len(prompts)} prompts, a step needs {prompts_per_step} different ones"
                " (rollout.prompts_per_step)"
            )
        self.prompts_per_step = prompts_per_step
        self.group_size = group_size
        whole = epochs * len(prompts) // prompts_per_step
        self.steps = whole if steps is None else min(steps, whole)
        self._seed = seed
        self._prompts = sorted(prompts)
        self._words = np.array([int(prompt, 16) for prompt in self._prompts], dtype=np.uint64)
        self._orders: dict[int, Order] = {}
        self._cursors = [Cursor()]  # of the first steps, without refills

    def prompts(self, step: int) -> list[str]:
        """The step's prompts without refills, in the order in which to begin them."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} is not in 0..{self.steps - 1}")
        return self.draw(self.cursor(step), self.prompts_per_step)[0]

    def samples(self, step: int) -> list[SampleId]:
        """Group after group."""
        return [SampleId(step, prompt, index) for prompt in self.prompts(step) for index in range(self.group_size)]

    def cursor(self, step: int) -> Cursor:
        """Where the step's prompts begin if no step before it was refilled."""
        count = self.prompts_per_step
        while len(self._cursors) <= step:
            last = self._cursors[-1]
            plain = self._is_plain(last, count)
            after = Cursor(position=last.position + count) if plain else self.draw(last, count)[1]
            self._cursors.append(after)
        return self._cursors[step]

    def _is_plain(self, cursor: Cursor, count: int) -> bool:
        """Whether the next `count` prompts are of one epoch, with none deferred."""
        size = len(self._prompts)
        return not cursor.deferred and cursor.position % max(1, size) + count <= size

    def draw(self, cursor: Cursor, count: int, without: Collection[str] = ()) -> tuple[list[str], Cursor]:
        """The next `count` prompts, none of `without` and none twice, and the cursor behind them.

        Fewer if the dataset has no others.
        """
        size = len(self._prompts)
        count = min(count, size - len(set(without)))
        if not without and self._is_plain(cursor, count):
            epoch, start = divmod(cursor.position, max(1, size))
            rows = self._order(epoch)[start : start + count]
            return [self._prompts[row] for row in rows], Cursor(position=cursor.position + count)
        drawn: list[str] = []
        held, deferred, position = set(without), list[str](), cursor.position

        def take(prompt: str) -> None:
            free = len(drawn) < count and prompt not in held
            (drawn if free else deferred).append(prompt)
            held.add(prompt)

        for prompt in cursor.deferred:
            take(prompt)
        while len(drawn) < count:
            epoch, start = divmod(position, size)
            take(self._prompts[self._order(epoch)[start]])
            position += 1
        return drawn, Cursor(position=position, deferred=deferred)

    def epoch(self, cursor: Cursor) -> int:
        """The epoch of most prompts of a step that begins here, from 0; on a tie, the earlier one."""
        return (cursor.drawn + (self.prompts_per_step - 1) // 2) // len(self._prompts)

    def _order(self, epoch: int) -> Order:
        """The epoch's permutation."""
        if epoch not in self._orders:
            if len(self._orders) >= KEPT_EPOCHS:
                del self._orders[min(self._orders)]
            keys = _mix(self._words ^ np.uint64(_key(self._seed, epoch)))
            self._orders[epoch] = np.argsort(keys, kind="stable")
        return self._orders[epoch]


def _key(seed: int, epoch: int) -> int:
    return int(_mix(_mix(np.array([(seed * GOLDEN + epoch + 1) & WORD], dtype=np.uint64)))[0])


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection, so different prompts have different keys."""
    words = words + np.uint64(GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
