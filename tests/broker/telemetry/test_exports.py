"""A whole run, with third-party systems."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.run.folder import read_metrics
from rhymed_broker import telemetry
from tests.broker.cluster import Cluster, changed, until

TRACKIO = """
import json, os
def put(row):
    with open(os.environ["TAKEN"], "a") as file:
        file.write(json.dumps(row) + "\\n")
class Run:
    def log(self, row, step):
        put({"step": step, **row})
    def finish(self):
        put("finished")
def init(**given):
    put(given["config"]["rollout"]["group_size"])
    return Run()
"""


async def test_a_sink_has_all_metrics_of_a_run_when_that_is_over(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio.py").write_text(TRACKIO)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("TAKEN", str(tmp_path / "taken"))
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(changed(config, metrics={"sinks": ["trackio"]}), stack).open()
        trainer = await cluster.everybody()
        await asyncio.wait_for(trainer.over.wait(), 60)
        await trainer.report(messages.Checkpointed(worker=trainer.name, step=3))
        await trainer.leave()
        await until(lambda: cluster.broker.finished, "the end")
        taken = [json.loads(line) for line in (tmp_path / "taken").read_text().splitlines()]
    written = [{key: row[key] for key in row if key != "time"} for row in read_metrics(cluster.where)]
    assert taken == [4, *written, "finished"]
    assert len(written) == 3


async def test_a_run_does_not_begin_without_a_package_that_it_names(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    async with contextlib.AsyncExitStack() as stack:
        cluster = Cluster(changed(config, metrics={"sinks": ["mlflow"]}), stack)
        with pytest.raises(ConfigError, match=r"pip install 'rhymed\[mlflow\]'"):
            await cluster.broker.run()
