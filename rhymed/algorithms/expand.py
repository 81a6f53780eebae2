"""A name and the settings that a user changed -> the recipe. Every mistake is told in one error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from rhymed.algorithms.recipe import Recipe
from rhymed.algorithms.table import ALGORITHMS

SETTINGS = tuple(field.name for field in fields(Recipe) if field.name not in ("name", "source"))
"""What can be set; each has the same name in `[trainer]`."""

NEEDS: dict[str, tuple[str, Callable[[Recipe], bool]]] = {
    "tis_cap": ("correction = 'token-tis'", lambda recipe: recipe.correction == "token-tis"),
}
"""Settings that only some recipes use: what they need, in words and as a condition."""


def expand(name: str, overrides: Mapping[str, Any]) -> Recipe:
    """The recipe of this name with these settings; None stands for the algorithm's own default.

    Raises `ValueError` for an unknown name, and for settings without effect in this recipe, one line each.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"algorithm = {name!r} is unknown{_near(name, ALGORITHMS)}")
    given = {key: value for key, value in overrides.items() if value is not None}
    if unknown := sorted(given.keys() - set(SETTINGS)):
        raise ValueError(f"{unknown[0]} is no setting of an algorithm{_near(unknown[0], SETTINGS)}")
    recipe = replace(ALGORITHMS[name], **given)
    if unused := [_unused(key, recipe) for key in given if not uses(recipe, key)]:
        raise ValueError("\n".join(unused))
    return recipe


def uses(recipe: Recipe, setting: str) -> bool:
    return setting not in NEEDS or NEEDS[setting][1](recipe)


def _unused(setting: str, recipe: Recipe) -> str:
    users = [name for name, other in ALGORITHMS.items() if uses(other, setting)]
    near = [key for key in SETTINGS if uses(recipe, key) and key.partition("_")[0] == setting.partition("_")[0]]
    text = f"{setting} is not used by algorithm = {recipe.name!r}: it needs {NEEDS[setting][0]}"
    text += f" ({', '.join(users)} use it)" if users else ""
    return text + (f"; near names that are used: {', '.join(near)}" if near else "")


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"{hint} (known: {', '.join(known)})"
