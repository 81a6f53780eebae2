"""Which prompts a step trains on. Pure: a cursor into one endless sequence of prompts is all that a resume needs.

The sequence comes from `mixture`: with one dataset, the concatenation of the epochs' permutations. Steps take their
prompts from it one after another: the rest of an epoch begins the next step, so no prompt is lost or repeated. No
step has a prompt twice: a prompt that the step already has is deferred, and the next step that may have it takes it
first. With several datasets a prompt waits once at most: refills may pass a small dataset more often than steps can
take from it, and what waits must not grow with the run. Without refills (`ledger/draws.py`) step k begins behind
k * prompts_per_step prompts, and the rest of the last epoch is too small for a step and is not used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rhymed.errors import DataError
from rhymed.messages import Cursor, SampleId
from rhymed_broker.mixture import Mixture
from rhymed_broker.sampler import Sampler


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
        mixture = self._mixture
        count = min(count, mixture.size - len(set(without)))
        knows = self.sampler is not None and cursor.known > 0
        if not knows and not without and not cursor.deferred and mixture.is_plain(cursor.position, count):
            return mixture.plain(cursor.position, count), Cursor(position=cursor.position + count)
        drawn: list[str] = []
        held, deferred, position = set(without), list[str](), cursor.position
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
            prompt = mixture.at(position)
            if not knows or not self._passes_over(prompt, position, cursor.known):
                take(prompt)
            position += 1
        return drawn, Cursor(position=position, deferred=deferred, known=cursor.known)

    def _passes_over(self, prompt: str, position: int, known: int) -> bool:
        return self.sampler is not None and self.sampler.passes_over(prompt, position, known)

    def epoch(self, cursor: Cursor) -> int:
        """The epoch of most prompts of a step that begins here, from 0; on a tie, the earlier one."""
        return (cursor.drawn + (self.prompts_per_step - 1) // 2) // self._mixture.size
