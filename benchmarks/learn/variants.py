"""What `python -m benchmarks learn` compares: algorithms, each with settings of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhymed.core.algorithms import ALGORITHMS

WITHOUT_REWARD = ("sft", "opd", "opsd")  # they learn from answers or from a teacher
PARTS = {
    "lora": ("trainer.lora.rank=16", "trainer.lora.alpha=32", "trainer.lr=2e-4"),
    "length": ("data.sampler=length",),
}
"""What a variant may have besides its algorithm."""
SEEDS_OF_THREE = ("grpo", "dapo", "gspo", "rloo", "ppo", "grpo+lora")
OWN: dict[str, tuple[str, ...]] = {}
"""Settings with which an algorithm differs from the task's configuration, and why.

Those of an algorithm's published defaults are in `rhymed.core.algorithms`; here is what depends on the task.
"""


@dataclass(frozen=True)
class Variant:
    """An algorithm's name, with a part behind it `+lora` (adapters only), `+length` (steps of similar length)."""

    name: str
    settings: tuple[str, ...]  # `section.key=value`


def variant(name: str) -> Variant:
    """Raises `ValueError` for a name that is not in the table."""
    algorithm, *parts = name.split("+")
    if algorithm not in ALGORITHMS or not PARTS.keys() >= set(parts):
        raise ValueError(f"unknown algorithm {name!r}; there are {', '.join(names())}")
    more = (setting for part in parts for setting in PARTS[part])
    return Variant(name, (f"trainer.algorithm={algorithm}", *more, *OWN.get(name, ())))


def names() -> list[str]:
    """Of all variants, in the table's order."""
    return [*(name for name in ALGORITHMS if name not in WITHOUT_REWARD), "grpo+lora"]


def pairs(chosen: Sequence[str], seeds: int | None) -> Iterator[tuple[Variant, int]]:
    """Each variant with each of its seeds; without `seeds`, three for `SEEDS_OF_THREE` and one for the others.

    All variants come with their first seed before any comes with its second.
    """
    counts = {name: seeds or (3 if name in SEEDS_OF_THREE else 1) for name in chosen}
    for seed in range(max(counts.values(), default=0)):
        yield from ((variant(name), seed) for name in chosen if seed < counts[name])
