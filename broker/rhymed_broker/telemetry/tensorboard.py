"""TensorBoard's text and hparams: the table of samples, and the configuration next to the reward.

The broker writes the curves into `tensorboard/`; this is a run of its own there, `tensorboard/samples/`, since
TensorBoard follows one file of events per run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from rhymed_broker.telemetry import MetricsRow, RunDescription, SampleRow

SHOWN = ("reward/mean", "response_length/mean")
"""Metrics that hparams are compared by."""


class TensorBoard:
    def __init__(self, run: RunDescription) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events: Any = EventFileWriter(str(run.folder / "tensorboard" / "samples"))
        self._put(0, _hparams(run))

    def write(self, row: MetricsRow) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = [Summary.Value(tag=name, simple_value=row.metrics[name]) for name in SHOWN if name in row.metrics]
        if shown:
            self._put(row.step, Summary(value=shown))

    def samples(self, step: int, rows: Sequence[SampleRow]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[_markdown(rows).encode()])
        self._put(step, Summary(value=[Summary.Value(tag="samples", metadata=plugin, tensor=tensor)]))

    def close(self, *, finished: bool) -> None:
        self._events.close()

    def _put(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._events.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._events.flush()


def _hparams(run: RunDescription) -> Any:
    from tensorboard.plugins.hparams import summary_v2

    values = {
        key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for key, value in run.flat.items()
    }
    return summary_v2.hparams_pb(values, trial_id=run.id)


def _markdown(rows: Sequence[SampleRow]) -> str:
    names = SampleRow._fields
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append(f"| {' | '.join(_cell(value) for value in row)} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return str("" if value is None else value).replace("|", "\\|").replace("\n", "<br>")


open_sink = TensorBoard
