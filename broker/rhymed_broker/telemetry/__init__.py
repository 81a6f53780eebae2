"""Other people's systems that the metrics of a run go on to: one file each, and what they have in common.

Invariants: a run never waits for a sink, nor fails with it. Each is a process of its own that follows the lines of
`metrics.jsonl` and remembers how far it has come: what it cannot send now it sends later, also when it was killed, or
the run was. Names are those of docs/metrics.md. This module is light: a sink's package is imported in its process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rhymed.errors import ConfigError

if TYPE_CHECKING:
    from rhymed.config import Metrics


@dataclass(frozen=True)
class About:
    """What a sink is told of the run when it is opened."""

    name: str  # the run's
    id: str  # 16 hex digits; the same however often the run, or the sink, is started again
    config: Mapping[str, Any]  # the whole configuration, section -> key -> value, without passwords in addresses
    settings: Mapping[str, Any]  # `[metrics]` as it is
    folder: Path  # the run's, absolute

    @property
    def flat(self) -> dict[str, Any]:
        """The whole configuration as `section.key` -> value."""
        return {f"{section}.{key}": value for section, keys in self.config.items() for key, value in keys.items()}


@dataclass(frozen=True)
class Line:
    """A line of metrics.jsonl."""

    step: int  # of the training, from 0; of an evaluation: the policy version
    time: float  # unix seconds
    metrics: Mapping[str, float]  # without those that are no number


class Sink(Protocol):
    """May block and raise. The same line may come twice, and so may a step: the one that comes last counts."""

    def write(self, line: Line) -> None: ...

    def close(self, *, finished: bool) -> None:
        """`finished`: the run is; else it was stopped, and may go on one day."""


PACKAGES = {"wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
"""Name in `metrics.sinks` -> package that it needs. The module here, and the extra, are called like the sink."""


def open_sink(name: str, about: About) -> Sink:
    """In the process of the sink: its package is imported now. Raises `ConfigError` if it is missing."""
    if not _installed(PACKAGES[name]):
        raise ConfigError(f"{PACKAGES[name]} is not installed: pip install 'rhymed[{name}]'")
    sink: Sink = import_module(f"rhymed_broker.telemetry.{name}").open_sink(about)
    return sink


def missing(metrics: Metrics) -> list[str]:
    """What must be installed for `[metrics]` and is not: a sentence each."""
    wanted: list[tuple[str, str, str]] = [
        (f"metrics.sinks has {name!r}", name, PACKAGES[name]) for name in metrics.sinks
    ]
    if metrics.traces:
        wanted.append(("metrics.traces is set", "otel", "opentelemetry.exporter.otlp.proto.http"))
    return [
        f"{why}, but {package} is not installed: pip install 'rhymed[{extra}]', or take it out"
        for why, extra, package in wanted
        if not _installed(package)
    ]


def _installed(package: str) -> bool:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # of a package around it
        return False
    return spec is not None and spec.origin is not None  # not just a folder of that name, as W&B likes to leave


def shareable(tree: Any) -> Any:
    """The same without what stands before the @ of addresses in it: `https://me:secret@host` is `https://***@host`."""
    if isinstance(tree, Mapping):
        return {key: shareable(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [shareable(value) for value in tree]
    return re.sub(r"://[^/@\s]+@", "://***@", tree) if isinstance(tree, str) else tree
