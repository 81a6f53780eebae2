"""The sinks with the real packages, where they are installed: what was sent is read back from what they keep.

Each run is sent in two parts, as if it had been resumed; its step 1 is trained twice.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import layout_of
from rhymed.core.run.metrics import MetricsLog
from tests.records.history.folders import two_epochs, write_store, write_tokenizer

PARTS = ({0: 0.1, 1: 0.2}, {1: 0.25, 2: 0.3})
NEWEST = {0: 0.1, 1: 0.25, 2: 0.3}
COLUMNS = ["prompt", "response", "reward", "parts", "tokens", "sample"]
PROMPTS = {"how many apples are there?", "how many pears are there?"}
BLOCK = 32768  # bytes, of LevelDB's logs


def send(tmp_path: Path, sink: str, **settings: object) -> Config:
    """Both parts, each by a process of its own."""
    config = Config.model_validate(
        {
            "run": {"name": "test", "folder": str(tmp_path / "runs")},
            "model": {"path": str(write_tokenizer(tmp_path))},
            "metrics": {"sinks": [sink], "project": "songs", "samples": 4, **settings},
        }
    )
    where = layout_of(config)
    where.folder.mkdir(parents=True)
    where.config.write_text(config.model_dump_json())
    write_store(where.folder, two_epochs())
    own = {"HOME": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    for part in PARTS:
        log = MetricsLog(where.metrics)
        for step, value in part.items():
            log.write(step, {"reward/mean": value, "val/gsm8k/acc/mean@4": 1.0, "actor/kl": float("nan")})
        log.close()
        command = [sys.executable, "-P", "-m", "rhymed_broker.telemetry", sink, str(where.config)]
        subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, **own}, timeout=140)
    return config


def wandb_records(file: Path) -> Iterator[bytes]:
    """What is in a .wandb file: LevelDB's log format, after seven bytes."""
    raw, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left  # no header fits into the rest of a block
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_weights_and_biases_keeps_one_run_in_files(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    where = layout_of(send(tmp_path, "wandb", offline=True))
    found: dict[int, float] = {}
    runs, axes = [], set()
    for file in sorted(where.folder.glob("wandb/offline-run-*/*.wandb")):
        for record in map(Record.FromString, wandb_records(file)):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                runs.append((record.run.run_id, record.run.display_name, record.run.project))
            elif kind == "history":
                row = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
                if "reward/mean" not in row:  # that of a table
                    continue
                found[int(json.loads(row["step"]))] = json.loads(row["reward/mean"])
            elif kind == "metric":
                axes.add((record.metric.glob_name or record.metric.name, record.metric.step_metric))
    assert found == NEWEST
    tables = [json.loads(file.read_text()) for file in where.folder.glob("wandb/*/files/media/table/*.table.json")]
    assert all(table["columns"] == COLUMNS for table in tables)
    assert {row[0] for table in tables for row in table["data"]} == PROMPTS
    assert len(set(runs)) == 1
    assert runs[0][1:] == ("test", "songs")
    assert ("*", "step") in axes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mlflow_keeps_one_run_in_its_database(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    send(tmp_path, "mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("songs")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "test"
    assert run.info.status == "FINISHED"
    assert run.data.params["rollout.group_size"] == "8"
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert {one.step: one.value for one in sorted(history, key=lambda one: one.timestamp)} == NEWEST
    assert run.data.metrics["val/gsm8k/acc/mean_at_4"] == 1.0
    assert "actor/kl" not in run.data.metrics
    files = [one.path for one in client.list_artifacts(run.info.run_id, "samples")]
    assert files == [f"samples/step-{step:06d}.json" for step in NEWEST]
    table = json.loads(Path(client.download_artifacts(run.info.run_id, files[0], str(tmp_path))).read_text())
    assert table["columns"] == COLUMNS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_trackio_keeps_one_run_on_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    send(tmp_path, "trackio")
    [file] = (tmp_path / "trackio").glob("songs*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select run_name, step, metrics from metrics order by timestamp, rowid").fetchall()
        configs = database.execute("select count(*) from configs").fetchone()
    database.close()
    assert len({name for name, _, _ in rows}) == 1
    assert rows[0][0].startswith("test-")
    logged = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert {step: row["reward/mean"] for step, row in logged if "reward/mean" in row} == NEWEST
    tables = {step: row["samples"] for step, row in logged if "samples" in row}
    assert set(tables) == set(NEWEST)
    assert tables[0]["_type"] == "trackio.table"
    assert configs == (1,)
