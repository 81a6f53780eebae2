"""`rhymed history compare`: which of two runs is better? Numbers of both, and what their difference means.

Rewards are compared prompt by prompt: how hard the prompts are then cancels out, and small differences show. Rewards
of other prompts, or of other scorers, do not mean the same, and are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rhymed.core.config.base import flat
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.messages import EVAL
from rhymed.core.run import folder as folders
from rhymed.core.run import provenance
from rhymed.core.run.layout import paths_of
from rhymed.core.run.metrics import EDGE_STEPS, Row, filtering, finite, known, mean_of, totals
from rhymed.core.run.timeline import Progress
from rhymed.core.secret import redacted
from rhymed.core.text import counted, number, truncated
from rhymed.records.history.folder import find
from rhymed.records.several import config_of, held_out
from rhymed_store.browse import StoreReader
from rhymed_store.columns import SampleColumns

ERRORS = 2.0  # standard errors: a larger difference is more than noise, at about 95 %
FEW = 8  # prompts: with fewer, the standard error itself is not known well enough
JUDGED_STEPS = 20  # the newest steps that both have, whose prompts are compared
OWN = ("run.name", "run.folder")  # every run has its own
MEASURES = ("reward.", "eval.threshold", "eval.max_response_length")  # another reward is another scale
OF_JUDGES = ("concurrency", "timeout_s", "patience_s", "cache", "key_variable")
COUNTS = ("reward.workers", "reward.processes", *(f"reward.judge.{name}" for name in OF_JUDGES))
"""Change the time of scoring, not the scores."""
WIDEST = 28  # characters of a value

Means = Mapping[tuple[int, int], float]
"""(step of those that are compared, prompt as a number) -> mean reward of its samples"""
Numbers = dict[str, float | None]
"""Of one run, by the names in `NUMBERS`; None: it has no such number."""
NUMBERS = {
    "steps": (".0f", "steps"),
    "hours": (".2f", "hours of work"),
    "reward_final": (".3f", f"reward, last {EDGE_STEPS} steps"),
    "reward_common": (".3f", f"reward, last {EDGE_STEPS} steps of those in both"),
    "held_out": (".3f", "held-out reward"),
    "tokens_per_s": (".0f", "tokens per second"),
    "response_length": (".1f", f"response length, last {EDGE_STEPS} steps"),
}


@dataclass(frozen=True)
class Difference:
    """Of two runs' mean rewards of the same prompts."""

    by: float  # the second's minus the first's
    prompts: int  # that were compared
    error: float | None  # standard error; None: of a single prompt

    @property
    def is_known(self) -> bool:
        """There are enough prompts to judge."""
        return self.error is not None and self.prompts >= FEW

    @property
    def is_more_than_noise(self) -> bool:
        return self.is_known and abs(self.by) > ERRORS * (self.error or 0.0)


@dataclass(frozen=True)
class Comparison:
    names: tuple[str, str]
    numbers: tuple[Numbers, Numbers]
    judged: dict[str, Difference | str]  # kind of rows -> how their rewards differ, or why that is not judged
    settings: dict[str, list[Any]]  # key -> its value in each run, where these differ

    def json(self) -> dict[str, Any]:
        judged = {
            rows: one if isinstance(one, str) else {**asdict(one), "more_than_noise": one.is_more_than_noise}
            for rows, one in self.judged.items()
        }
        return {**asdict(self), "judged": judged}


def compare(first: Path, second: Path) -> Comparison | None:
    """None: a run has trained no step. Blocking. Raises `ConfigError`."""
    pair = first, second
    one, other = (folders.read_metrics(paths_of(folder)) for folder in pair)
    if not one or not other:
        return None
    common = min(len(one), len(other))
    evaluated = [held_out(folders.read_evaluations(paths_of(folder))) for folder in pair]
    numbers = [
        _numbers(folder, rows, rows[:common], held)
        for folder, rows, (held, _) in zip(pair, (one, other), evaluated, strict=True)
    ]
    settings = differences(*map(_config, pair))
    filtered = any((filtering(rows) or {}).get("filtered_groups") for rows in (one, other))
    judged = _judged(
        pair, [step for _, step in evaluated], common, _other_rewards(settings, *pair), filtered=filtered
    )
    names = first.resolve().name, second.resolve().name
    return Comparison(
        names if names[0] != names[1] else (str(first), str(second)), (numbers[0], numbers[1]), judged, settings
    )


def _numbers(folder: Path, rows: list[Row], common: list[Row], held: float | None) -> Numbers:
    progress = Progress()
    progress.read(folder)
    elapsed_s = progress.times(None).elapsed_s
    sums = totals(rows, elapsed_s)
    return {
        "steps": int(rows[-1]["step"]) + 1,
        "hours": elapsed_s / 3600,
        "reward_final": finite(sums["reward_last"]),
        "reward_common": mean_of(known(common[-EDGE_STEPS:], "reward/mean")),
        "held_out": held,
        "tokens_per_s": finite(sums["tokens_per_s"]),
        "response_length": mean_of(known(rows[-EDGE_STEPS:], "response_length/mean")),
    }


def _judged(
    pair: tuple[Path, Path], evaluated: list[int | None], common: int, other_rewards: str, *, filtered: bool
) -> dict[str, Difference | str]:
    """`evaluated`: steps before each run's newest evaluation. `common`: steps that both have."""
    one, other = map(columns_of, pair)
    if other_rewards or one is None or other is None:
        why = other_rewards or "not judged: a store is not on this machine"
        return {"rewards": why}
    held: Difference | str = "not both runs evaluate any ([[eval.datasets]])"
    before, after = evaluated
    if before is not None and after is not None:
        a, b = EVAL + before, EVAL + after
        found = difference(means(one, a, a + 1), means(other, b, b + 1))
        held = found or "not judged: the runs have other ones"
    span = max(0, common - JUDGED_STEPS), common
    training: Difference | str
    if filtered:
        training = "not judged: groups without a signal were left out (dynamic sampling), others in each run"
    else:
        found = difference(means(one, *span), means(other, *span))
        training = found or "not judged: the runs have other ones"
    return {"held-out rows": held, f"training rows, newest {JUDGED_STEPS} steps of both": training}


def columns_of(folder: Path) -> SampleColumns | None:
    """None: there is no store on this machine, or it cannot be read."""
    try:
        with StoreReader(find(folder)[1]) as reader:
            return reader.browse.columns()
    except RhymedError:
        return None


def means(columns: SampleColumns, first: int, end: int) -> Means:
    """Of the steps from `first` to before `end`, each with its own prompts; an evaluation is one step."""
    chosen = (columns.step >= first) & (columns.step < end) & ~np.isnan(columns.reward) & ~columns.dropped
    steps, prompts = columns.step[chosen] - first, columns.prompt[chosen]
    found: dict[tuple[int, int], list[float]] = {}
    for step, prompt, reward in zip(steps.tolist(), prompts.tolist(), columns.reward[chosen].tolist(), strict=True):
        found.setdefault((step, prompt), []).append(reward)
    return {key: sum(rewards) / len(rewards) for key, rewards in found.items()}


def difference(first: Means, second: Means) -> Difference | None:
    """None: fewer than half of one run's prompts are the other's, too."""
    common = sorted(first.keys() & second.keys())
    if not common or 2 * len(common) < max(len(first), len(second)):
        return None
    by = np.array([second[key] - first[key] for key in common])
    error = float(by.std(ddof=1) / math.sqrt(len(by))) if len(by) > 1 else None
    return Difference(float(by.mean()), len(common), error)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Of two configurations: key -> the value in each, None where there is none; without secrets."""
    one, other = (flat(redacted(dict(config))) for config in (first, second))
    keys = [key for key in {**one, **other} if key not in OWN and one.get(key) != other.get(key)]
    return {key: [one.get(key), other.get(key)] for key in keys}


def _other_rewards(settings: Mapping[str, Any], first: Path, second: Path) -> str:
    """Why the rewards of both runs do not mean the same; empty: they do."""
    keys = [key for key in settings if key.startswith(MEASURES) and key not in COUNTS]
    starts = [provenance.read(folder) for folder in (first, second)]
    if all(starts):
        a, b = (each[0].files for each in starts)
        keys += [f"the content of {path}" for path in a if path.endswith(".py") and a[path] != b.get(path, a[path])]
    return f"not comparable: other rewards ({', '.join(keys)}), so their numbers do not mean the same" if keys else ""


def _config(folder: Path) -> dict[str, Any]:
    try:
        return config_of(folder) or {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {error}") from None


def report(found: Comparison) -> str:
    """The comparison as text. Pure."""
    lines = ["", "which is better"]
    for rows, one in found.judged.items():
        lines.append(f"  {rows}: {one if isinstance(one, str) else _sentence(one, *found.names)}")
    a, b = found.numbers
    table = [(label, number(a[name], form), number(b[name], form)) for name, (form, label) in NUMBERS.items()]
    lines += ["", *_columns([("", *found.names), *table])]
    values = [(key, _value(first), _value(second)) for key, (first, second) in found.settings.items()]
    lines += ["", *(["settings that differ", *_columns(values)] if values else ["no setting differs"])]
    return "\n".join(lines)


def _sentence(found: Difference, first: str, second: str) -> str:
    error = f" ± {found.error:.3f}" if found.error is not None else ""
    by = f"{second} {found.by:+.3f}{error} ({counted(found.prompts, 'prompt')})"
    if not found.is_known:
        return f"{by}: fewer than {FEW} prompts do not decide"
    if not found.is_more_than_noise:
        return f"no difference beyond noise: {by}"
    return f"{second if found.by > 0 else first} is better: {by}"


def _value(value: Any) -> str:
    return truncated("-" if value is None else str(value), WIDEST)


def _columns(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    """Numbers and values are aligned right."""
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    return (f"  {a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows)
