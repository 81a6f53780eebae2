"""What the algorithm's name and the settings expand to. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rhymed.algorithms import ALGORITHMS, SETTINGS, Recipe, uses
from rhymed.check.report import Section
from rhymed.config.parts.critic import Critic

PARTS: Mapping[str, tuple[str, ...]] = {
    "advantage": ("advantage", "whiten", "gamma", "gae"),
    "loss": ("loss", "ratio", "clip", "dual", "cispo", "sapo", "dppo", "aggregation"),
    "KL": ("kl",),
    "correction": ("correction", "tis", "sequence", "icepop", "geometric", "off"),
    "overlong": ("overlong",),
}
"""Rows, by the first words of their settings; settings of no row are listed in the last one."""


def describe(recipe: Recipe, critic: Critic | None = None) -> Section:
    """`critic`: its settings, shown if the recipe has one."""
    section = Section("algorithm")
    section.add(recipe.name, f"defaults: {recipe.source}")
    rows: dict[str, list[str]] = {}
    for setting in SETTINGS:
        if uses(recipe, setting):
            rows.setdefault(_part(setting), []).append(_setting(recipe, setting))
    for label, texts in rows.items():
        section.add(label, ", ".join(texts))
    if recipe.critic and critic:
        settings = [f"{name} = {_written(value) or 'model.path'}" for name, value in critic]
        section.add("critic", f"{', '.join(settings)}; it doubles the passes")
    return section


def _part(setting: str) -> str:
    word = setting.partition("_")[0]
    return next((label for label, words in PARTS.items() if word in words), "other")


def _setting(recipe: Recipe, setting: str) -> str:
    """`clip_eps_high = 0.28 (default 0.2)`."""
    value, default = getattr(recipe, setting), getattr(ALGORITHMS[recipe.name], setting)
    return f"{setting} = {_written(value)}" + (f" (default {_written(default)})" if value != default else "")


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
