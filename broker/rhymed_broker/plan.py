"""Which prompts a step trains on. Pure: a position (the step's number) is all that a resume needs.

The stream of prompts is the concatenation of the epochs' permutations, cut into steps: the rest of an epoch begins
the next step, so no prompt is lost or repeated. No step has a prompt twice: in a step with prompts of two epochs, a
prompt that it already has moves behind the step. The rest of the last epoch is too small for a step and is not used.
The order depends only on the seed, the epoch and the prompts' ids, not on the dataset's row order or on a library's
random generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rhymed.errors import DataError
from rhymed.messages import SampleId

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1

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
        self._orders: list[Order] = []

    def prompts(self, step: int) -> list[str]:
        """The step's prompts, in the order in which to begin them."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} is not in 0..{self.steps - 1}")
        first, size = step * self.prompts_per_step, len(self._prompts)
        epoch, start = divmod(first, size)
        rows = list(self._order(epoch)[start : start + self.prompts_per_step])
        if missing := self.prompts_per_step - len(rows):
            rows += list(self._order(epoch + 1)[:missing])
        return [self._prompts[row] for row in rows]

    def samples(self, step: int) -> list[SampleId]:
        """Group after group."""
        return [SampleId(step, prompt, index) for prompt in self.prompts(step) for index in range(self.group_size)]

    def epoch(self, step: int) -> int:
        """The epoch of most of the step's prompts, from 0; on a tie, the earlier one."""
        return (step * self.prompts_per_step + (self.prompts_per_step - 1) // 2) // len(self._prompts)

    def _order(self, epoch: int) -> Order:
        while len(self._orders) <= epoch:
            self._orders.append(self._seamless(len(self._orders)))
        return self._orders[epoch]

    def _seamless(self, epoch: int) -> Order:
        """The epoch's permutation; prompts that its first step already has move behind that step."""
        drawn = np.argsort(_mix(self._words ^ np.uint64(_key(self._seed, epoch))), kind="stable")
        held = (
            epoch * len(self._prompts) % self.prompts_per_step
        )  # prompts that the first step has from the epoch before
        if not held:
            return drawn
        clash = np.isin(drawn, self._orders[epoch - 1][-held:])
        head = np.flatnonzero(~clash)[: self.prompts_per_step - held]
        rest = np.ones(len(drawn), dtype=bool)
        rest[head] = False
        return np.concatenate([drawn[head], drawn[rest]])


def _key(seed: int, epoch: int) -> int:
    return int(_mix(_mix(np.array([(seed * GOLDEN + epoch + 1) & WORD], dtype=np.uint64)))[0])


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection, so different prompts have different keys."""
    words = words + np.uint64(GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
