"""How counts, sizes, durations and foreign texts are written for people. Pure.

People count steps, epochs, responses and tokens from 1 (`step_name`, `epoch_name`, `response_name`); ids and data
count from 0.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.steps import evaluated_version, is_evaluation

if TYPE_CHECKING:
    from rhymed.core.messages import Call

STEP_COLUMNS = (
    ("reward/mean", "reward", "{:.3f}"),
    ("response_length/mean", "length", "{:.1f}"),
    ("rollout/tokens_per_s", "tok/s", "{:.0f}"),
    ("timing_s/rollout", "roll s", "{:.1f}"),
    ("timing_s/reward", "score s", "{:.1f}"),
    ("timing_s/train", "train s", "{:.1f}"),
    ("mismatch_kl/mean", "mismatch", "{:.4f}"),
)
"""(metric, heading, format) of a step's line."""

TRAINED = (
    ("reward/flat_groups", "{:.0%} of the groups flat"),
    ("actor/loss", "loss {:.3g}"),
    ("actor/entropy", "entropy {:.3g}"),
    ("actor/grad_norm", "gradient norm {:.3g}"),
    ("actor/lr", "learning rate {:.2g}"),
    ("mismatch_kl/mean", "mismatch {:.2g}"),
    ("actor/tokens", "{:,.0f} tokens"),
    ("timing_s/train", "{:.1f} s"),
)
"""(metric, text) of the trainer's line."""

EVALUATED_ID = re.compile(r"(?<![\w/-])([0-9]{10,})(?=/[0-9a-f]{16}/[0-9])")
"""The step in the id of a sample of an evaluation."""

TOML_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that need no quotes."""


def counted(number: float, noun: str, plural: str = "") -> str:
    """`1 step`, `1,204 steps`, `2.5 epochs`."""
    if number == 1:
        return f"1 {noun}"
    digits = f"{number:,.0f}" if number == int(number) else f"{number:,.2f}".rstrip("0").rstrip(".")
    return f"{digits} {plural or noun + 's'}"


def number(value: float | None, form: str) -> str:
    """`form` as for `format`; None is a dash."""
    return "-" if value is None else format(value, form)


def parts_text(parts: Mapping[str, float | str] | None) -> str:
    """Of a reward: `exact 1, format 0.4`; empty without parts."""
    texts = ((name, value if isinstance(value, str) else f"{value:g}") for name, value in (parts or {}).items())
    return ", ".join(f"{name} {text}" for name, text in texts)


def size_of(count: float) -> str:
    """Of bytes: `812 B`, `1.4 MiB`, `313 MiB`, `2.0 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.{0 if unit == 'B' or count > 10 else 1}f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def age(seconds: float) -> str:
    """For narrow columns, at most six characters: `0.4s`, `59s`, `3m02s`, `4h07m`, `12d03h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def duration(seconds: float) -> str:
    """For sentences: `90 s`, `12 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def call_text(call: Call) -> str:
    """`calculate 3 ms`, with its error."""
    return f"{call.name}{_spent(1000 * call.seconds)}{f', failed: {call.error}' if call.error else ''}"


def _spent(ms: float) -> str:
    """Empty: no time, as of a call that was not made."""
    if ms >= 1000:
        return f" {duration(ms / 1000)}"
    return "" if ms <= 0 else " <0.1 ms" if ms < 0.05 else f" {ms:.1f} ms" if ms < 10 else f" {ms:.0f} ms"


def clock(seconds: float) -> str:
    """Time since a start: `0:07`, `59:03`, `1:00:02`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def short(value: Any, length: int = 80) -> str:
    """A value as an error quotes it."""
    try:
        text = repr(value)
    except Exception:  # of a user's object; or a number of thousands of digits, which Python does not write
        text = f"<{type(value).__name__}>"
    return truncated(text, length)


def truncated(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def toml_key(name: str) -> str:
    return name if TOML_BARE.fullmatch(name) else _toml_quoted(name)


def quoted(path: Path | str) -> str:
    """The text as one word of a shell, for printed commands."""
    return shlex.quote(str(path))


def toml_value(value: Any) -> str:
    """A plain value as TOML has it, tables inline. Raises `TypeError` for None, which TOML does not have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_value(each)}' for key, each in value.items())} }}"
    if not isinstance(value, str):
        raise TypeError(f"TOML has no value for {value!r}")
    if "\\" in value and "'" not in value and value.isprintable():
        return f"'{value}'"  # patterns stay readable
    return _toml_quoted(value)


def _toml_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else _toml_escape(ord(c)) for c in escaped) + '"'


def _toml_escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def step_name(step: int) -> str:
    """An open step for people, who count from 1; ids and files count from 0."""
    return f"eval v{evaluated_version(step)}" if is_evaluation(step) else f"step {step + 1}"


def step_phrase(step: int) -> str:
    """The step in a sample's id, within a sentence."""
    if is_evaluation(step):
        return f"the evaluation of version {evaluated_version(step)}"
    return step_name(step) if step >= 0 else "an earlier run"


def epoch_name(epoch: int) -> str:
    """Of an epoch that data number from 0."""
    return f"epoch {epoch + 1}"


def response_name(index: int) -> str:
    """Of the response with this index in its group."""
    return f"#{index + 1}"


def readable(text: str) -> str:
    """With ids of evaluations as people read and write them: `eval-v3/ab12cd34ab12cd34/0`."""
    return EVALUATED_ID.sub(_evaluation, text)


def _evaluation(found: re.Match[str]) -> str:
    step = int(found[1])
    return f"eval-v{evaluated_version(step)}" if is_evaluation(step) else found[1]


def trained_line(metrics: Mapping[str, float]) -> str:
    """What the trainer did in a step: `loss -0.839, entropy 4.03, …`."""
    return ", ".join(form.format(metrics[key]) for key, form in TRAINED if key in metrics)


def step_line(metrics: Mapping[str, float]) -> str:
    """A step's metrics in one line that has no heading above it."""
    return "   ".join(f"{name} {form.format(metrics[key])}" for key, name, form in STEP_COLUMNS if key in metrics)


def evaluation_lines(metrics: Mapping[str, float]) -> list[str]:
    """An evaluation's metrics, one line per dataset; dropped samples are named if there are any."""
    by_dataset: dict[str, list[str]] = {}
    for key, value in sorted(metrics.items(), key=lambda item: item[0].endswith("/dropped")):
        head, _, rest = key.partition("/")
        dataset, _, metric = rest.partition("/")
        if head == "val" and (metric.startswith("acc/") or metric == "reward/mean"):
            label = metric.removeprefix("acc/").removesuffix("/mean")
            by_dataset.setdefault(dataset, []).append(f"{label} {value:.3f}")
        elif head == "val" and metric == "dropped" and value:
            by_dataset.setdefault(dataset, []).append(f"dropped {value:.0f}")
    return [f"{dataset}   {'   '.join(texts)}" for dataset, texts in by_dataset.items()]
