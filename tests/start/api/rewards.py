"""Reward functions as a script or notebook would define them."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter

from rhymed.core.text import counted
from tests.tiny import write_tiny_model

WANTED = {"letters": 20, "most": (1.0, 2)}
WORD = re.compile(r"\w+", re.IGNORECASE)
OPENED = open(__file__)  # noqa: SIM115
OPENED.close()


class Scale:
    """Divides."""

    def __init__(self, by: float = WANTED["letters"]) -> None:
        self.by = by

    def __call__(self, value: float) -> float:
        return share(value, self.by)


def share(value: float, by: float) -> float:
    return min(WANTED["most"][0], value / by)


half = functools.partial(share, by=2)


def plain(completions, **columns):
    return [len(text) / 10 for text in completions]


def uses_all(completions: list[NotHere], **columns) -> list[NotHere]:  # noqa: F821
    def score(text):
        words = WORD.findall(text)
        return Scale()(len(Counter(words))) + math.floor(0.5) + len(counted(1, "word")) * 0

    OPENED = 0  # noqa: N806  # a name of its own
    return [score(text) + OPENED for text in completions]


def uses_a_file(completions, **columns):
    return [float(len(OPENED.name)) for _ in completions]


def uses_a_module_of_its_own(completions, **columns):
    return [float(callable(write_tiny_model)) for _ in completions]


def with_weight(weight):
    def weighted(completions, **columns):
        return [weight * share(len(text), 10) for text in completions]

    return weighted


async def slow(completions, **columns):
    return [1.0 for _ in completions]


def recursive(completions, **columns):
    return [0.0, *recursive(completions[1:])] if completions else []


class Judge:
    def score(self, completions, **columns):
        return [1.0 for _ in completions]

    def __call__(self, completions, **columns):
        return [1.0 for _ in completions]
