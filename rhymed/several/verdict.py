"""The comparison of two runs as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rhymed.run.totals import EDGE_STEPS
from rhymed.several.better import Comparison, Numbers
from rhymed.several.rewards import FEW, Difference
from rhymed.text import age, counted, truncated

WIDEST = 28  # characters of a value


def render(found: Comparison) -> str:
    lines = ["", "which is better", *(f"  not comparable: {why}" for why in found.obstacles.values())]
    lines += [f"  {line}" for line in conclusions(found)]
    lines += ["", *_columns([("", found.first.name, found.second.name), *_numbers(found)])]
    if found.settings:
        rows = [(key, *(_value(value) for value in values)) for key, values in found.settings.items()]
        lines += ["", "settings that differ", *_columns([(key, a, b) for key, a, b in rows])]
    else:
        lines += ["", "no setting differs"]
    return "\n".join(lines)


def conclusions(found: Comparison) -> Iterator[str]:
    """A sentence for each kind of reward that both runs have."""
    names = found.first.name, found.second.name
    if "rewards" in found.obstacles:
        return
    if "held_out" in found.obstacles:
        pass  # stated already
    elif found.held_out is not None:
        steps = [counted(one.held_out_step or 0, "step") for one in (found.first, found.second)]
        after = f"after {steps[0]}" if steps[0] == steps[1] else f"after {steps[0]} and {steps[1]}"
        yield f"held-out rows, {after}: {_sentence(found.held_out, *names)}"
    elif found.first.held_out is None or found.second.held_out is None:
        yield "held-out rows: not both runs evaluate any ([[eval.datasets]])"
    else:
        yield "held-out rows: no standard error, since a store is not on this machine"
    if found.training is not None and "rows" not in found.obstacles:
        yield f"training rows, the newest steps of both: {_sentence(found.training, *names)}"


def _sentence(found: Difference, first: str, second: str) -> str:
    by = f"{found.by:+.3f}" + (f" ± {found.error:.3f}" if found.error is not None else "")
    rows = f"{counted(found.prompts, 'prompt')}, {'paired' if found.paired else 'not paired: other prompts'}"
    if not found.is_known:
        return f"{second} {by} ({rows}): fewer than {FEW} prompts do not decide"
    if not found.is_more_than_noise:
        return f"no difference beyond noise: {second} {by} ({rows})"
    return f"{second if found.by > 0 else first} is better: {second} {by} ({rows})"


def _numbers(found: Comparison) -> Iterator[tuple[str, str, str]]:
    last = f"last {EDGE_STEPS} steps"
    shown = (
        ("steps", "steps", "{:.0f}"),
        (f"reward, {last}", "reward_final", "{:.3f}"),
        (f"reward, best {EDGE_STEPS} steps in a row", "reward_best", "{:.3f}"),
        (f"reward, {last} of those in both", "reward_common", "{:.3f}"),
        ("held-out reward", "held_out", "{:.3f}"),
        ("reward gained per hour", "gain_per_hour", "{:+.3f}"),
        ("tokens per second", "tokens_per_s", "{:.0f}"),
        (f"response length, {last}", "response_length", "{:.1f}"),
    )
    yield "time of work", age(3600 * found.first.hours), age(3600 * found.second.hours)
    for label, name, form in shown:
        yield label, _number(found.first, name, form), _number(found.second, name, form)


def _number(of: Numbers, name: str, form: str) -> str:
    value = getattr(of, name)
    return "-" if value is None else form.format(value)


def _value(value: Any) -> str:
    return truncated("-" if value is None else str(value), WIDEST)


def _columns(rows: list[tuple[str, str, str]]) -> list[str]:
    """Numbers and values are aligned right."""
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    return [f"  {a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows]
