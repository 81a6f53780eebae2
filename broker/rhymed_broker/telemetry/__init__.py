"""Exports to third-party systems: metrics to W&B, trackio and MLflow, one file each.

Invariants: a run never waits for a sink, nor fails with it. Each sink is a process that follows `metrics.jsonl` and
stores its position: what it cannot send now it sends later, even after it or the run was killed. Names are those of
docs/metrics.md. This module is light: a sink's package is imported in the sink's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rhymed.core.errors import ConfigError

if TYPE_CHECKING:
    from rhymed.core.config import Metrics


@dataclass(frozen=True)
class RunDescription:
    """What a sink gets when it is opened."""

    name: str  # the run's
    id: str  # 16 hex digits; stays the same when the run or the sink restarts
    config: Mapping[str, Any]  # section -> key -> value, without passwords in addresses
    settings: Metrics
    folder: Path  # the run's, absolute


@dataclass(frozen=True)
class MetricsRow:
    """A row of metrics.jsonl."""

    step: int  # of training, from 0; for an evaluation, the policy version
    time: float  # Unix seconds
    metrics: Mapping[str, float]  # finite numbers only


class SampleRow(NamedTuple):
    """A row of a step's table of samples."""

    prompt: str
    response: str
    reward: float | None  # None: not scored
    parts: str  # of the reward, by scorer, before their weights; empty: it has none
    tokens: int  # of the response
    sample: str  # its id, as `rhymed history` shows it


class Sink(Protocol):
    """May block and raise. Rows and steps may repeat: the last one counts."""

    def write(self, row: MetricsRow) -> None: ...

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        """The step's table, after its row of metrics; at least one row."""

    def close(self, *, finished: bool) -> None:
        """`finished`: the run is over; otherwise it was stopped and may be resumed."""


SINKS = ("wandb", "trackio", "mlflow")
"""Names in `metrics.sinks`, which are those of their packages, extras and modules, too."""


def open_sink(name: str, run: RunDescription) -> Sink:
    """Imports the sink's package. Raises `ConfigError` if it is missing."""
    if not _installed(name):
        raise ConfigError(f"{name} is not installed: pip install 'rhymed[{name}]'")
    sink: Sink = import_module(f"rhymed_broker.telemetry.{name}").open_sink(run)
    return sink


def missing_packages(metrics: Metrics) -> list[str]:
    """A sentence for each package that `[metrics]` needs and that is not installed."""
    return [
        f"metrics.sinks has {name!r}, but it is not installed: pip install 'rhymed[{name}]', or remove the setting"
        for name in metrics.sinks
        if not _installed(name)
    ]


def _installed(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # not just a folder of that name, such as W&B leaves
