"""Which prompts every step takes from the run's one sequence of prompts. Pure, part of the ledger.

The sequence has one cursor, and the steps take from it in a fixed order, whatever happens when: the first prompts of
the steps 0 to `reach` (those that are open at version 0), the refills of step 0, the first prompts of step reach + 1,
the refills of step 1, and so on. A step is *sealed* when its prompts are final. Invariant: steps are sealed in order,
and only the first step that is not sealed is refilled, so the cursor never depends on timing.

`Drawn` is the state at the moment when a step was sealed. It is journaled when the step is trained; a restart
continues from it. Where a broker died before it was written, the step's samples in the journal give the number of
prompts that it took. Knows no samples and no states.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from rhymed.messages import Cursor, Drawn
from rhymed_broker.sampler import Rates, Sampler


class Steps(Protocol):
    """The plan of a run, as the ledger uses it; see `plan.Plan`."""

    steps: int
    size: int  # prompts in the dataset
    prompts_per_step: int
    group_size: int
    sampler: Sampler | None  # not None: what is drawn depends on success rates

    def cursor(self, step: int) -> Cursor: ...

    def draw(self, cursor: Cursor, count: int, without: Collection[str] = ()) -> tuple[list[str], Cursor]: ...

    def epoch(self, cursor: Cursor) -> int: ...


class Draws:
    """`reach`: steps that are open beyond the oldest one."""

    def __init__(self, plan: Steps, reach: int) -> None:
        self.kept = False  # some step was refilled, or is journaled: what later steps draw has to be journaled
        self._plan, self._reach = plan, reach
        self._next = Cursor()  # of the next prompts that a step takes
        self._starts: dict[int, Cursor] = {}  # step -> of its first prompts
        self._refill = (-1, Cursor(), 0)  # step that is being refilled, its first refill, prompts so far

    def restore(
        self,
        position: int,
        drawn: Iterable[Drawn],
        taken: Mapping[int, Collection[str]],
        rates: Mapping[int, Rates],
    ) -> list[Drawn]:
        """To the state after `position` trained steps. Returns what was derived, as it was not journaled.

        `drawn`: from the journal; `taken`: step -> prompts of its samples in the journal, of steps before `position`;
        `rates`: of these, with a sampler.
        """
        drawn = sorted(drawn, key=lambda one: one.step)
        earlier = [one for one in drawn if one.step < position]
        sampler = self._plan.sampler
        self.kept = bool(drawn) or sampler is not None  # also of steps that are trained again: theirs are replaced
        if sampler is not None:
            sampler.reset()
            for one in earlier:
                sampler.learn(one.step, one.rates)
        if earlier:
            last = earlier[-1]
            first, self._next, self._starts = last.step + 1, last.after, dict(last.reserved)
        else:
            first = min((step for step in taken if step < position), default=position)
            self._next = self._plan.cursor(first)
        derived = []
        for step in range(first, position):
            self._reserve(step)
            prompts = self.first(step)
            count = len(set(taken.get(step, ())) - set(prompts))
            self.refill(step, count, prompts)
            derived.append(self.seal(step, rates.get(step, [])))
        self._reserve(position)
        return derived if self.kept else []

    def _reserve(self, step: int) -> None:
        """The first prompts of this step and of those that are open with it; all steps before it are sealed."""
        self._know(step)
        for later in range(step, step + self._reach + 1):
            if later not in self._starts:
                self._starts[later] = self._next
                _, self._next = self._plan.draw(self._next, self._plan.prompts_per_step)

    def first(self, step: int) -> list[str]:
        """The prompts that an open step begins with."""
        return self._plan.draw(self._starts[step], self._plan.prompts_per_step)[0]

    def refill(self, step: int, count: int, without: Collection[str]) -> list[str]:
        """The next prompts for the first step that is not sealed, which has those of `without` already.

        Fewer if the dataset has no others.
        """
        refilled, start, sofar = self._refill
        if refilled != step:
            start, sofar = self._next, 0
        prompts: list[str] = []
        if count > 0:
            self._know(step)
            start = self._next if not sofar else start
            prompts, self._next = self._plan.draw(self._next, count, without)
        self._refill = step, start, sofar + len(prompts)
        self.kept |= bool(prompts)
        return prompts

    def _know(self, steps: int) -> None:
        """What is drawn from here on knows the success rates of so many steps, neither more nor less."""
        if self._plan.sampler is not None:
            self._next = replace(self._next, known=steps)

    def seal(self, step: int, rates: Rates) -> Drawn:
        """The step takes no more prompts: the next one may. `rates`: of all its prompts, with a sampler."""
        self.refill(step, 0, ())
        if self._plan.sampler is not None:
            self._plan.sampler.learn(step, rates)
        _, refill, refilled = self._refill
        self._reserve(step + 1)
        start = self._starts.pop(step)
        reserved = sorted(self._starts.items())
        after = self._next
        return Drawn(
            step=step, start=start, refill=refill, refilled=refilled, after=after, reserved=reserved, rates=rates
        )
