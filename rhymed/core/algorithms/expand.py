"""A name and the settings that a user changed -> the recipe. One error lists every mistake."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from rhymed.core.algorithms.recipe import Recipe
from rhymed.core.algorithms.table import ALGORITHMS

SETTINGS = tuple(field.name for field in fields(Recipe) if field.name not in ("name", "source"))
"""What can be set; each has the same name in `[trainer]`."""

Need = tuple[str, Callable[[Recipe], bool]]

_CLIPPED: Need = ("loss = 'clip' or 'gmpo'", lambda recipe: recipe.loss in ("clip", "gmpo"))
_CLIP: Need = ("loss = 'clip'", lambda recipe: recipe.loss == "clip")
_CISPO: Need = ("loss = 'cispo'", lambda recipe: recipe.loss == "cispo")
_SAPO: Need = ("loss = 'sapo'", lambda recipe: recipe.loss == "sapo")
_DPPO: Need = ("loss = 'dppo'", lambda recipe: recipe.loss == "dppo")
_OTHERS: Need = (
    "a loss other than 'dppo' and 'likelihood', which need none",
    lambda recipe: recipe.loss not in ("dppo", "likelihood"),
)
_GRADIENT: Need = ("a policy gradient, not loss = 'likelihood'", lambda recipe: recipe.loss != "likelihood")
_KL: Need = ("kl_coef above 0", lambda recipe: recipe.kl_coef > 0)
_TARGET: Need = ("entropy_target above 0", lambda recipe: recipe.entropy_target > 0)
_TIS: Need = ("correction = 'token-tis'", lambda recipe: recipe.correction == "token-tis")
_SEQUENCE: Need = ("correction = 'sequence-mask'", lambda recipe: recipe.correction == "sequence-mask")
_ICEPOP: Need = ("correction = 'icepop'", lambda recipe: recipe.correction == "icepop")
_GEOMETRIC: Need = ("correction = 'geometric'", lambda recipe: recipe.correction == "geometric")
_BASELINE: Need = (
    "advantage = 'group-mean' or 'leave-one-out'",
    lambda recipe: recipe.advantage in ("group-mean", "leave-one-out"),
)
_TOKENS: Need = ("advantage = 'return' or 'gae'", lambda recipe: recipe.advantage in ("return", "gae"))
_GAE: Need = ("advantage = 'gae'", lambda recipe: recipe.advantage == "gae")
_REWARDS: Need = ("an advantage other than 'none'", lambda recipe: recipe.advantage != "none")
_CACHE: Need = ("overlong_cache above 0", lambda recipe: recipe.overlong_cache > 0)

NEEDS: dict[str, Need] = {
    "advantage": _GRADIENT,
    "advantage_scale": _BASELINE,
    "gamma": _TOKENS,
    "gae_lambda": _GAE,
    "whiten": _REWARDS,
    "ratio": _CLIP,
    "clip_eps_low": _CLIPPED,
    "clip_eps_high": _CLIPPED,
    "dual_clip": _CLIP,
    "cispo_min": _CISPO,
    "cispo_max": _CISPO,
    "sapo_tau_pos": _SAPO,
    "sapo_tau_neg": _SAPO,
    "dppo_mask_low": _DPPO,
    "dppo_mask_high": _DPPO,
    "dppo_kl_tau": _DPPO,
    "kl_estimator": _KL,
    "kl_in": _KL,
    "entropy_coef": _GRADIENT,
    "entropy_target": _GRADIENT,
    "entropy_coef_min": _TARGET,
    "entropy_coef_max": _TARGET,
    "entropy_coef_delta": _TARGET,
    "correction": _OTHERS,
    "off_policy_mask": _GRADIENT,
    "tis_cap": _TIS,
    "sequence_mask_cap": _SEQUENCE,
    "icepop_min": _ICEPOP,
    "icepop_max": _ICEPOP,
    "geometric_min": _GEOMETRIC,
    "geometric_max": _GEOMETRIC,
    "overlong_cache": _REWARDS,
    "overlong_penalty": _CACHE,
}
"""Settings that only some recipes use: what they need, in words and as a condition."""

ORDERED = (
    ("cispo_min", "cispo_max"),
    ("icepop_min", "icepop_max"),
    ("geometric_min", "geometric_max"),
    ("entropy_coef_min", "entropy_coef_max"),
)


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
    wrong = [_unused(key, recipe) for key in given if not uses(recipe, key)]
    for low, high in ORDERED:
        if getattr(recipe, low) > getattr(recipe, high):
            wrong.append(f"{low} = {getattr(recipe, low):g} is above {high} = {getattr(recipe, high):g}")
    if wrong:
        raise ValueError("\n".join(wrong))
    return recipe


def uses(recipe: Recipe, setting: str) -> bool:
    return setting not in NEEDS or NEEDS[setting][1](recipe)


def _unused(setting: str, recipe: Recipe) -> str:
    """What the setting needs, who has it, and the settings of the same family that this recipe uses."""
    users = [name for name, other in ALGORITHMS.items() if uses(other, setting)]
    near = [key for key in SETTINGS if uses(recipe, key) and key.partition("_")[0] == setting.partition("_")[0]]
    text = f"{setting} is not used by algorithm = {recipe.name!r}: it needs {NEEDS[setting][0]}"
    text += f" (as in {', '.join(users)})" if users else ""
    return text + (f"; near names that are used: {', '.join(near)}" if near else "")


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"{hint} (known: {', '.join(known)})"
