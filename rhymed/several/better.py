"""`rhymed history compare`: which of two runs is better? Numbers of both, and what their difference means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from rhymed.errors import ConfigError
from rhymed.run import provenance
from rhymed.run.totals import EDGE_STEPS, Row, filtering, totals
from rhymed.several import rewards
from rhymed.several.differences import differences
from rhymed.several.find import config_of
from rhymed.several.rewards import Difference
from rhymed.several.rows import Files, held_out, read_files

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
    files = [read_files(folder) for folder in (first, second)]
    if not all(each.rows for each in files):
        return None
    configs = [_config(folder) for folder in (first, second)]
    common = min(len(each.rows) for each in files)
    names = _names(first, second)
    numbers = [_numbers(name, each, common) for name, each in zip(names, files, strict=True)]
    columns = [rewards.columns_of(folder) for folder in (first, second)]
    settings = differences(configs)
    files_differ = _other_files(first, second)
    filtered = any((filtering(each.rows) or {}).get("filtered_groups") for each in files)
    obstacles = dict(_obstacles(settings, files_differ, columns, filtered=filtered))
    held, training = None, None
    if columns[0] is not None and columns[1] is not None:
        versions = [one.held_out_step for one in numbers]
        if versions[0] is not None and versions[1] is not None:
            held = rewards.difference(
                rewards.held_out(columns[0], versions[0]), rewards.held_out(columns[1], versions[1])
            )
            if held is not None and not held.paired:
                obstacles["held_out"] = "other held-out rows: their rewards do not mean the same"
        newest = max(0, common - JUDGED_STEPS), common
        training = rewards.difference(rewards.trained(columns[0], *newest), rewards.trained(columns[1], *newest))
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


def _numbers(name: str, files: Files, common: int) -> Numbers:
    rows, times = files.rows, files.progress.times(None)
    sums = totals(rows, times.elapsed_s)
    values = _known(rows, "reward/mean")
    edge = max(1, min(EDGE_STEPS, common))
    hours = times.elapsed_s / 3600
    held, _, step = held_out(files.evaluations)
    gain = sums["reward_gain"] / hours if values and hours else None
    return Numbers(
        name=name,
        steps=int(rows[-1]["step"]) + 1,
        hours=hours,
        reward_final=sums["reward_last"] if values else None,
        reward_best=best(values, EDGE_STEPS),
        reward_common=_mean(_known(rows[:common][-edge:], "reward/mean")),
        held_out=held,
        held_out_step=step,
        gain_per_hour=gain,
        tokens_per_s=_finite(sums["tokens_per_s"]),
        response_length=_mean(_known(rows[-EDGE_STEPS:], "response_length/mean")),
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
    first, second = (rewards.prompts(each) for each in columns)
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


def _known(rows: Sequence[Row], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row.get(key) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _finite(value: float) -> float | None:
    return value if value == value else None


def _json(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {**asdict(found), "by": found.by, "more_than_noise": found.is_more_than_noise}
