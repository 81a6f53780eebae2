"""`rhymed history compare`: which of two runs is better? Numbers of both, and what their difference means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.messages import EVAL
from rhymed.core.run import folder as folders
from rhymed.core.run import provenance
from rhymed.core.run.layout import paths_of
from rhymed.core.run.metrics import EDGE_STEPS, Row, filtering, finite, known, mean_of, totals
from rhymed.core.run.timeline import Progress
from rhymed.core.secret import redacted
from rhymed.core.text import age, counted, truncated
from rhymed.records.history.folder import find
from rhymed.records.several import config_of, held_out
from rhymed_store.browse import StoreReader
from rhymed_store.columns import SampleColumns

# Rewards by prompt in a run's store, and the difference of two runs' rewards with its standard error.
#
# Two runs that answered the same prompts are compared prompt by prompt: how hard the prompts are then cancels out,
# and much smaller differences show. Other prompts are compared by their means alone.

ERRORS = 2.0  # standard errors: a larger difference is more than noise, at about 95 %
FEW = 8  # prompts: with fewer, the standard error itself is not known well enough

Means = Mapping[tuple[int, int], float]
"""(step or 0, prompt as a number) -> mean reward of its samples"""


@dataclass(frozen=True)
class Difference:
    """Of two runs' mean rewards."""

    first: float
    second: float
    prompts: int  # that were compared; of runs that are not paired, the smaller number
    paired: bool
    error: float | None  # standard error of the difference; None: of a single prompt

    @property
    def by(self) -> float:
        return self.second - self.first

    @property
    def is_known(self) -> bool:
        """There are enough prompts to judge."""
        return self.error is not None and self.prompts >= FEW

    @property
    def is_more_than_noise(self) -> bool:
        return self.is_known and abs(self.by) > ERRORS * (self.error or 0.0)


def columns_of(folder: Path) -> SampleColumns | None:
    """None: there is no store on this machine, or it cannot be read."""
    try:
        with StoreReader(find(folder)[1]) as reader:
            return reader.browse.columns()
    except RhymedError:
        return None


def held_out_means(columns: SampleColumns, version: int) -> Means:
    """Of the evaluation of this policy version."""
    return _means(columns, columns.step == EVAL + version, by_step=False)


def trained(columns: SampleColumns, first: int, end: int) -> Means:
    """Of the training steps from `first` to before `end`, each with its own prompts."""
    return _means(columns, (columns.step >= first) & (columns.step < end), by_step=True)


def prompts(columns: SampleColumns) -> set[int]:
    """Those that were trained on."""
    return set(columns.prompt[(columns.step >= 0) & (columns.step < EVAL)].tolist())


def difference(first: Means, second: Means) -> Difference | None:
    """Paired by prompt where at least half of both runs' prompts are the same. None: one run has no rewards."""
    if not first or not second:
        return None
    common = sorted(first.keys() & second.keys())
    if 2 * len(common) >= max(len(first), len(second)):
        a, b = (np.array([means[key] for key in common]) for means in (first, second))
        return Difference(float(a.mean()), float(b.mean()), len(common), True, standard_error(b - a))
    a, b = (np.array(list(means.values())) for means in (first, second))
    errors = standard_error(a), standard_error(b)
    error = None if None in errors else math.hypot(*(one or 0.0 for one in errors))
    return Difference(float(a.mean()), float(b.mean()), min(len(a), len(b)), False, error)


def standard_error(values: NDArray[np.float64]) -> float | None:
    """Of the mean. None: a single value has none."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def _means(columns: SampleColumns, chosen: NDArray[np.bool_], *, by_step: bool) -> Means:
    chosen = chosen & ~np.isnan(columns.reward) & ~columns.dropped
    steps = columns.step[chosen] if by_step else np.zeros(int(chosen.sum()), np.int64)
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    rows = zip(steps.tolist(), columns.prompt[chosen].tolist(), columns.reward[chosen].tolist(), strict=True)
    for step, prompt, reward in rows:
        total, count = sums.get((step, prompt), (0.0, 0))
        sums[step, prompt] = total + reward, count + 1
    return {key: total / count for key, (total, count) in sums.items()}


# `rhymed history compare`: which of two runs is better? Numbers of both, and what their difference means.

# In which settings runs differ. Pure: configurations in, the keys that are not equal everywhere out.

OWN = ("run.name", "run.folder")  # every run has its own

Settings = Mapping[str, Any]


def flat(config: Settings, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key. Lists are values."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differences(configs: Sequence[Settings]) -> dict[str, list[Any]]:
    """Key -> the value in each configuration, None where there is none; without secrets."""
    settings = [flat(redacted(dict(config))) for config in configs]
    keys = dict.fromkeys(key for each in settings for key in each)
    values = {key: [each.get(key) for each in settings] for key in keys if key not in OWN}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


JUDGED_STEPS = 20  # the newest steps that both have, whose prompts are compared
MEASURES = ("reward.", "eval.threshold", "eval.max_response_length")  # another reward is another scale
OF_JUDGES = ("concurrency", "timeout_s", "patience_s", "cache", "key_variable")
COUNTS = ("reward.workers", "reward.processes", *(f"reward.judge.{name}" for name in OF_JUDGES))
"""Change the time of scoring, not the scores."""
ROWS = ("data.", "rollout.max_prompt_length")


Obstacle: TypeAlias = Literal["model", "rewards", "rows", "held_out"]


@dataclass(frozen=True)
class Numbers:
    """Of one run; None: it has no such number."""

    name: str
    steps: int
    hours: float  # of work
    reward_final: float | None  # mean of the last steps
    reward_best: float | None  # the highest mean of as many steps in a row
    reward_common: float | None  # mean of the last of those steps that both runs have
    held_out: float | None  # mean reward of its newest evaluation
    held_out_step: int | None  # trained steps before that
    gain_per_hour: float | None  # of training reward, from the first steps to the last
    tokens_per_s: float | None
    response_length: float | None  # tokens, mean of the last steps


@dataclass(frozen=True)
class Comparison:
    first: Numbers
    second: Numbers
    obstacles: dict[Obstacle, str]  # what is not comparable, and why
    held_out: Difference | None  # of the newest evaluations
    training: Difference | None  # of the same prompts in the newest steps that both have
    settings: dict[str, list[Any]]  # key -> its value in each run

    def json(self) -> dict[str, Any]:
        return {**asdict(self), **{name: _json(getattr(self, name)) for name in ("held_out", "training")}}


def compare(first: Path, second: Path) -> Comparison | None:
    """None: a run has trained no step. Blocking. Raises `ConfigError`."""
    rows = [folders.read_metrics(paths_of(folder)) for folder in (first, second)]
    if not all(rows):
        return None
    configs = [_config(folder) for folder in (first, second)]
    common = min(map(len, rows))
    names = _names(first, second)
    numbers = [
        _numbers(name, folder, each, common) for name, folder, each in zip(names, (first, second), rows, strict=True)
    ]
    columns = [columns_of(folder) for folder in (first, second)]
    settings = differences(configs)
    files_differ = _other_files(first, second)
    filtered = any((filtering(each) or {}).get("filtered_groups") for each in rows)
    obstacles = dict(_obstacles(settings, files_differ, columns, filtered=filtered))
    held, training = None, None
    if columns[0] is not None and columns[1] is not None:
        versions = [one.held_out_step for one in numbers]
        if versions[0] is not None and versions[1] is not None:
            held = difference(held_out_means(columns[0], versions[0]), held_out_means(columns[1], versions[1]))
            if held is not None and not held.paired:
                obstacles["held_out"] = "other held-out rows: their rewards do not mean the same"
        newest = max(0, common - JUDGED_STEPS), common
        training = difference(trained(columns[0], *newest), trained(columns[1], *newest))
    return Comparison(numbers[0], numbers[1], obstacles, held, training, settings)


def best(values: Sequence[float], window: int) -> float | None:
    """The highest mean of so many neighbours."""
    if not values:
        return None
    window = min(window, len(values))
    return max(fmean(values[at : at + window]) for at in range(len(values) - window + 1))


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Of the folders; their paths if these are equal."""
    names = first.resolve().name, second.resolve().name
    return names if names[0] != names[1] else (str(first), str(second))


def _numbers(name: str, folder: Path, rows: list[Row], common: int) -> Numbers:
    progress = Progress()
    progress.read(folder)
    times = progress.times(None)
    sums = totals(rows, times.elapsed_s)
    values = known(rows, "reward/mean")
    edge = max(1, min(EDGE_STEPS, common))
    hours = times.elapsed_s / 3600
    held, step = held_out(folders.read_evaluations(paths_of(folder)))
    gain = sums["reward_gain"] / hours if values and hours else None
    return Numbers(
        name=name,
        steps=int(rows[-1]["step"]) + 1,
        hours=hours,
        reward_final=sums["reward_last"] if values else None,
        reward_best=best(values, EDGE_STEPS),
        reward_common=mean_of(known(rows[:common][-edge:], "reward/mean")),
        held_out=held,
        held_out_step=step,
        gain_per_hour=gain,
        tokens_per_s=finite(sums["tokens_per_s"]),
        response_length=mean_of(known(rows[-EDGE_STEPS:], "response_length/mean")),
    )


def _obstacles(
    settings: Mapping[str, list[Any]], files: Sequence[str], columns: Sequence[Any], *, filtered: bool
) -> Iterator[tuple[Obstacle, str]]:
    if model := settings.get("model.path") or settings.get("model.revision"):
        yield "model", f"other models ({model[0]} and {model[1]}): their difference is not that of the settings alone"
    keys = [key for key in settings if key.startswith(MEASURES) and key not in COUNTS]
    if keys := [*keys, *(f"the content of {path}" for path in files if path.endswith(".py"))]:
        yield "rewards", f"other rewards ({', '.join(keys)}): their numbers do not mean the same"
    rows = [key for key in settings if key.startswith(ROWS)]
    contents = [f"the content of {path}" for path in files if not path.endswith(".py")]
    shared = _share(columns)
    if contents or (rows and (shared is None or shared < 1.0)):
        share = "" if shared is None else f"; {shared:.0%} of the prompts are in both"
        yield "rows", f"other training rows ({', '.join([*rows, *contents])}){share}"
    elif filtered:
        yield "rows", "groups without a signal were left out (dynamic sampling): training rewards are of the others"


def _share(columns: Sequence[Any]) -> float | None:
    """Of all prompts that either run trained on, how many both did; None: unknown."""
    if any(each is None for each in columns):
        return None
    first, second = (prompts(each) for each in columns)
    return len(first & second) / len(first | second) if first | second else None


def _other_files(first: Path, second: Path) -> list[str]:
    """Files of rows and rewards that have the same path and another content."""
    starts = [provenance.read(folder) for folder in (first, second)]
    if not all(starts):
        return []
    a, b = (each[0].files for each in starts)
    return [path for path in a if path in b and a[path] != b[path]]


def _config(folder: Path) -> dict[str, Any]:
    try:
        return config_of(folder) or {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {error}") from None


def _json(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {**asdict(found), "by": found.by, "more_than_noise": found.is_more_than_noise}


# The comparison of two runs as text. Pure.

WIDEST = 28  # characters of a value


def report(found: Comparison) -> str:
    lines = ["", "which is better", *(f"  not comparable: {why}" for why in found.obstacles.values())]
    lines += [f"  {line}" for line in conclusions(found)]
    lines += ["", *_columns([("", found.first.name, found.second.name), *_numbers_of_both(found)])]
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


def _numbers_of_both(found: Comparison) -> Iterator[tuple[str, str, str]]:
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
