"""How counts, sizes and foreign texts are written on a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rhymed.messages import EVAL


def some(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def whose(step: int) -> str:
    """What a sample with this step in its id belongs to; people count steps from 1, ids from 0."""
    if step >= EVAL:
        return f"the evaluation of version {step - EVAL}"
    return step_name(step) if step >= 0 else "an earlier run"


def number(value: float | None, form: str) -> str:
    """`form` as for `format`; a dash where there is nothing to tell."""
    return "-" if value is None else format(value, form)


def size(count: float) -> str:
    """Of so many bytes."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def visible(text: str) -> str:
    """Without what would steer the terminal: a response may hold any character."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c == "\t" else "\ufffd" for c in text)


SHOWN = (
    ("reward/mean", "reward", "{:.3f}"),
    ("response_length/mean", "length", "{:.1f}"),
    ("rollout/tokens_per_s", "tok/s", "{:.0f}"),
    ("timing_s/rollout", "roll s", "{:.1f}"),
    ("timing_s/reward", "score s", "{:.1f}"),
    ("timing_s/train", "train s", "{:.1f}"),
    ("mismatch_kl/mean", "mismatch", "{:.4f}"),
)
"""(metric, heading, format) of a step's line."""


def step_name(step: int) -> str:
    """An open step, as people call it: counted from 1. Only ids and what programs read count from 0."""
    return f"eval v{step - EVAL}" if step >= EVAL else f"step {step + 1}"


def step_line(metrics: Mapping[str, float]) -> str:
    """A step's line where it has no heading above it."""
    return "   ".join(f"{name} {form.format(metrics[key])}" for key, name, form in SHOWN if key in metrics)


def age(seconds: float) -> str:
    """At most six characters: `0.4s`, `59s`, `3m02s`, `4h07m`, `12d03h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def grades(val: Mapping[str, float]) -> list[str]:
    """One line a dataset of an evaluation's metrics; samples that were dropped are told of where there are any."""
    by_name: dict[str, list[str]] = {}
    for key, value in sorted(val.items(), key=lambda item: item[0].endswith("/dropped")):
        head, _, rest = key.partition("/")
        name, _, metric = rest.partition("/")
        if head == "val" and (metric.startswith("acc/") or metric == "reward/mean"):
            by_name.setdefault(name, []).append(f"{metric.removeprefix('acc/').removesuffix('/mean')} {value:.3f}")
        elif head == "val" and metric == "dropped" and value:
            by_name.setdefault(name, []).append(f"dropped {value:.0f}")
    return [f"{name}   {'   '.join(texts)}" for name, texts in by_name.items()]
