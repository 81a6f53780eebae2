"""Writes the table of algorithms in docs/algorithms.md from `rhymed.core.algorithms`: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rhymed.core.algorithms import ALGORITHMS, Recipe, uses

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
START, END = "<!-- table: make docs -->\n", "<!-- end of the table -->\n"
SHOWN = ("advantage", "advantage_scale", "loss", "ratio", "aggregation")
"""Settings with a place of their own in a row."""


def table() -> Iterator[str]:
    yield "| name | advantage | loss | aggregation | other defaults | source |"
    yield "|---|---|---|---|---|---|"
    for recipe in ALGORITHMS.values():
        cells = (f"`{recipe.name}`", _advantage(recipe), _loss(recipe), recipe.aggregation, _others(recipe))
        yield f"| {' | '.join(cells)} | {recipe.source} |"


def _advantage(recipe: Recipe) -> str:
    scaled = uses(recipe, "advantage_scale") and recipe.advantage_scale != "none"
    text = recipe.advantage + (f" / {recipe.advantage_scale}" if scaled else "")
    return text + (", whitened" if recipe.whiten else "")


def _loss(recipe: Recipe) -> str:
    return recipe.loss + (f", ratio {recipe.ratio}" if uses(recipe, "ratio") and recipe.ratio != "token" else "")


def _others(recipe: Recipe) -> str:
    """What its loss needs, and what differs from the defaults of all."""
    plain, found = Recipe("", ""), list[str]()
    own = recipe.loss if recipe.loss != "clip" else "clip_eps"
    for name in vars(recipe):
        changed = getattr(recipe, name) != getattr(plain, name)
        wanted = name.startswith((own, "clip_eps")) or changed
        if wanted and uses(recipe, name) and name not in (*SHOWN, "name", "source", "whiten"):
            value = getattr(recipe, name)
            found.append(f"`{name}` {str(value).lower() if isinstance(value, str | bool) else f'{value:g}'}")
    return ", ".join(found)


def page() -> str:
    before, _, rest = PAGE.read_text().partition(START)
    return before + START + "\n" + "\n".join(table()) + "\n\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
