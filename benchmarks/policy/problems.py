"""Problems for a small reasoning model, with worked solutions to train on. Pure: chance comes from a generator.

A problem adds one two-digit number several times (a letter says how often: a once, b twice), and only the last two
digits of the sum are kept:

    37, n x 85 =

A solution does these additions, digit by digit with carries, and counts down to a, so the problem determines its
length. All that a step needs is in the step before, which a small network learns in minutes (it does not learn to
find one of many terms in a prompt). The wording varies between solutions (each has a `Voice` with its own habits) and
within one. Some steps are checked, and some wrong digits are written and corrected. The final answer is always right.
"""

from __future__ import annotations

import math
import random
import string
from dataclasses import dataclass

LETTERS = string.ascii_lowercase + string.ascii_uppercase
LONGEST = 32  # additions; such a solution has about 1,100 tokens
MEDIAN, SPREAD = 4.5, 0.95
"""Additions are log-normal (median, sigma of the logarithm): most problems are short, the longest 8 times as long."""

HABIT = 1.0
"""How much a voice's preferences differ from the common ones: sigma of the factors' logarithms."""

CHECK, SLIP, REVIEW = 0.06, 0.03, 0.06
"""Probabilities that a step is checked, a digit is wrong at first, and a whole solution is reviewed."""


@dataclass(frozen=True)
class Problem:
    start: int
    term: int
    times: int

    @property
    def prompt(self) -> str:
        return f"{self.start:02}, {LETTERS[self.times - 1]} x {self.term:02} =\n"

    @property
    def totals(self) -> list[int]:
        """At the start and after each addition; the last one is the answer."""
        return [(self.start + done * self.term) % 100 for done in range(self.times + 1)]

    @property
    def answer(self) -> str:
        return f"{self.totals[-1]:02}"


def problem(rng: random.Random, times: int | None = None) -> Problem:
    """A random problem with `times` additions; by default their number is random, too."""
    count = times or _size(rng)
    return Problem(rng.randrange(100), rng.randrange(100), count)


def _size(rng: random.Random) -> int:
    while True:
        size = round(rng.lognormvariate(math.log(MEDIAN), SPREAD))
        if 1 <= size <= LONGEST:
            return size


class Voice:
    """The wording of one solution: all prefer the first options, and each has its own habits."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._habits: dict[tuple[str, ...], list[float]] = {}

    def say(self, *options: str) -> str:
        if options not in self._habits:
            taste = (rank**-2.0 for rank in range(1, len(options) + 1))
            self._habits[options] = [weight * self.rng.lognormvariate(0, HABIT) for weight in taste]
        return self.rng.choices(options, self._habits[options])[0]

    def sometimes(self, chance: float) -> bool:
        return self.rng.random() < chance


def solution(problem: Problem, rng: random.Random) -> str:
    """A worked solution in its own voice; ends with the right answer."""
    voice = Voice(rng)
    lines = [voice.say("", "", "Step by step.\n", "Let us see.\n", "One at a time.\n")]
    for done, before in enumerate(problem.totals[:-1]):
        lines.append(_step(voice, problem.times - done, before, problem.term))
    if voice.sometimes(REVIEW):
        lines.append(_review(voice, problem))
    lines.append(
        voice.say("The answer is ", "Answer: ", "So the answer is ", "Result: ", "That makes ") + problem.answer
    )
    return "".join(lines)


def _step(voice: Voice, left: int, before: int, term: int) -> str:
    """`left`: additions to do, this one included."""
    head = voice.say("Now", "Next", "Then", "At", "With") + f" {LETTERS[left - 1]}, "
    head += voice.say("add ", "take ", "put ", "move ") + f"{term:02}"
    head += voice.say(" to ", " onto ", " after ", " with ") + f"{before:02}: "
    end = voice.say(", so ", ", giving ", ", thus ", ", total ") + f"{(before + term) % 100:02}"
    if voice.sometimes(CHECK):
        again = _add(voice, before, term)
        end += (
            voice.say(". Check: ", ". Let me check: ", ". Again: ") + again + voice.say(", right", ", good", ", yes")
        )
    return head + _add(voice, before, term) + end + ".\n"


def _add(voice: Voice, left: int, right: int) -> str:
    (tens, ones), (more, few) = divmod(left, 10), divmod(right, 10)
    carry, first = divmod(ones + few, 10)
    low = _equation(voice, f"{ones} + {few}", ones + few)
    if carry:
        low += voice.say(", keep ", ", write ", ", put ") + str(first)
        low += voice.say(", carry 1", ", bring 1", ", move 1")
    total = tens + more + carry
    high = _equation(voice, f"{tens} + {more}" + " + 1" * carry, total)
    if total > 9:
        high += voice.say(", keep ", ", write ", ", put ") + str(total % 10)
    return _columns(voice, low, high)


def _columns(voice: Voice, low: str, high: str) -> str:
    first = voice.say("ones ", "right ", "low ")
    return first + low + voice.say("; ", ", ") + voice.say("tens ", "left ", "high ") + high


def _equation(voice: Voice, terms: str, value: int) -> str:
    equals = voice.say(" = ", " is ", " makes ", " gives ")
    if not voice.sometimes(SLIP):
        return f"{terms}{equals}{value}"
    wrong = max(0, value + voice.rng.choice((-2, -1, 1, 2)))
    if wrong == value:
        wrong += 1
    return f"{terms}{equals}{wrong}" + voice.say(", no, ", ", wait, ", "? no, ") + str(value)


def _review(voice: Voice, problem: Problem) -> str:
    """Repeats all totals, without the digits."""
    shown = ", ".join(f"{total:02}" for total in problem.totals)
    return voice.say("Once more: ", "Go over it: ", "Check all: ") + f"{shown}.\n"
