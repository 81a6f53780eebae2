"""Metrics on their way to other people's systems, in processes of their own; packages misbehave here on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from rhymed.core.config import Config, Metrics
from rhymed.core.errors import ConfigError
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.run.metrics import MetricsLog
from rhymed.core.secret import redacted
from rhymed_broker import telemetry
from rhymed_broker.telemetry import MetricsRow, RunDescription, missing_packages, open_sink
from rhymed_broker.telemetry.__main__ import main
from rhymed_broker.telemetry.exports import Exports
from rhymed_broker.telemetry.follow import Bookmark, parse
from rhymed_broker.telemetry.follow import rows as metrics_rows

HONEST = """
import json, os, sys
name = __name__
class Run:
    def define_metric(self, *given, **more): pass
    def log(self, row, step=None):
        with open(os.path.join(os.environ["TAKEN"], name), "a") as file:
            file.write(json.dumps(row if step is None else {"step": step, **row}) + "\\n")
    def finish(self, exit_code=None):
        with open(os.path.join(os.environ["TAKEN"], name), "a") as file:
            file.write(json.dumps({"finished": exit_code}) + "\\n")
class Settings:
    def __init__(self, **given): pass
def init(**given):
    with open(os.path.join(os.environ["TAKEN"], name + ".init"), "a") as file:
        file.write(json.dumps(given, default=str) + "\\n")
    return Run()
"""
RAISING = "raise RuntimeError('no API key: first say login')\n"
HANGING = HONEST.replace(
    "def define_metric", "def log(self, *given, **more):\n        import time; time.sleep(600)\n    def define_metric"
).replace("    def log(self, row, step=None):", "    def never(self, row, step=None):")


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a module in the place of a package, in processes that are started from now on."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    monkeypatch.syspath_prepend(str(folder))  # here it is only looked for
    monkeypatch.setenv("TAKEN", str(tmp_path))

    def put(name: str, text: str) -> None:
        (folder / f"{name}.py").write_text(text)

    return put


def configured(tmp_path: Path, *names: str) -> Config:
    return Config.model_validate(
        {"run": {"name": "test", "folder": str(tmp_path / "runs")}, "metrics": {"sinks": names}}
    )


@contextlib.asynccontextmanager
async def kept(config: Config, **settings: float) -> AsyncIterator[Exports]:
    """The sinks of this run are kept going, with short pauses."""
    keeper = Exports(config, layout_of(config), **({"pause_s": 0.1} | settings))
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.close(finished=False, deadline_s=0.1)


async def until(true: Callable[[], object], what: str) -> None:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < 60, f"timed out: {what}"
        await asyncio.sleep(0.02)


def write(where: RunLayout, *steps: int) -> None:
    log = MetricsLog(where.metrics)
    for step in steps:
        log.write(step, {"reward/mean": step / 10})
    log.close()


async def test_what_one_sink_does_is_no_concern_of_another_nor_of_the_run(
    tmp_path: Path, package: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    package("wandb", RAISING)
    package("trackio", HONEST)
    config = configured(tmp_path, "wandb", "trackio")
    where = layout_of(config)
    async with kept(config) as keeper:
        await until(lambda: keeper.trouble, "wandb fails")
        assert "no API key: first say login" in keeper.trouble
        write(where, 0, 1)
        await until(lambda: len(rows(tmp_path / "trackio")) == 2, "trackio has all")
        package("wandb", HONEST)  # somebody logs in
        await until(lambda: len(rows(tmp_path / "wandb")) == 2, "wandb has all that was before")
        write(where, 2)
        await keeper.close(finished=True, deadline_s=60)
    for name, status in (("wandb", 0), ("trackio", None)):
        found = rows(tmp_path / name)
        assert [row.get("step") for row in found] == [0, 1, 2, None]
        assert found[1] == {"step": 1, "reward/mean": 0.1}
        assert found[-1] == {"finished": status}
    assert sum("no API key" in record.message for record in caplog.records) == 1


async def test_a_sink_that_hangs_is_started_again_and_does_not_hold_up_the_end(
    tmp_path: Path, package: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    package("wandb", HANGING)
    config = configured(tmp_path, "wandb")
    write(layout_of(config), 0)
    async with kept(config, stall_s=1.0) as keeper:
        await until(lambda: "hung" in keeper.trouble, "it is noticed")
        await until(lambda: len(rows(tmp_path / "wandb.init")) > 1, "it is started again")
    async with kept(config) as keeper:  # now with the usual patience
        before = len(rows(tmp_path / "wandb.init"))
        await until(lambda: len(rows(tmp_path / "wandb.init")) > before, "it is started")
        with caplog.at_level(logging.WARNING):
            await keeper.close(finished=True, deadline_s=0.2)
    again = next(record.message for record in caplog.records if "to send the rest: " in record.message)
    package("wandb", HONEST)
    command = again.split("to send the rest: python ")[1].split()
    await asyncio.to_thread(subprocess.run, [sys.executable, *command], check=True, timeout=60)
    assert rows(tmp_path / "wandb") == [{"step": 0, "reward/mean": 0.0}, {"finished": 0}]
    started = rows(tmp_path / "wandb.init")
    assert len({row["id"] for row in started}) == 1
    assert {row["resume"] for row in started} == {"allow"}


async def test_a_folder_that_cannot_be_made_is_trouble_and_no_end(
    tmp_path: Path, package: Callable[[str, str], None]
) -> None:
    package("wandb", HONEST)
    package("mlflow", HONEST)
    config = configured(tmp_path, "wandb", "mlflow")
    folder = layout_of(config).folder
    folder.mkdir(parents=True)
    (folder / "sinks").write_text("in the way")
    async with kept(config) as keeper:
        await until(lambda: keeper.trouble.count("cannot be started") == 2, "both are reported")


async def test_a_resumed_run_goes_on_where_it_was_and_a_step_trained_again_is_sent_again(
    tmp_path: Path, package: Callable[[str, str], None]
) -> None:
    package("trackio", HONEST)
    config = configured(tmp_path, "trackio")
    for steps in ((0, 1), (1, 2)):
        write(layout_of(config), *steps)
        async with kept(config) as keeper:
            expected = 2 if steps == (0, 1) else 5
            await until(lambda wanted=expected: len(rows(tmp_path / "trackio")) == wanted, "all is sent")
            await keeper.close(finished=False, deadline_s=60)
    assert [row.get("step") for row in rows(tmp_path / "trackio")] == [0, 1, None, 1, 2, None]
    assert len({row["name"] for row in rows(tmp_path / "trackio.init")}) == 1


def test_a_package_that_is_not_there_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    config = Config.model_validate({"metrics": {"sinks": ["mlflow"]}})
    assert missing_packages(config.metrics) == [
        "metrics.sinks has 'mlflow', but it is not installed: pip install 'rhymed[mlflow]', or remove the setting"
    ]
    assert missing_packages(Metrics()) == []


def test_what_a_person_forgot_is_reported_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"name the config\.json in a run's folder"):
        main(["wandb", str(tmp_path / "config.json")])
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^wandb is not installed: pip install 'rhymed\[wandb\]'$"):
        open_sink("wandb", RunDescription("r", "0" * 16, {}, Metrics(), tmp_path))


def test_a_folder_that_is_called_like_a_package_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert missing_packages(Metrics(sinks=["wandb"]))
    (tmp_path / "wandb" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    assert not missing_packages(Metrics(sinks=["wandb"]))


def test_a_sink_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"metrics": {"sinks": ["grafana"]}})


def test_passwords_in_addresses_stay_here() -> None:
    tree = {
        "metrics": {"mlflow": "postgresql://me:s3@cret@h/db", "sinks": ["a"], "n": 1},
        "data": {"args": ["http://x@y"]},
    }
    assert "s3" not in str(redacted(tree))
    assert redacted({"a": ["http://x:p@y/z", "val/d/acc/mean@4", 1, None]}) == {
        "a": ["http://***@y/z", "val/d/acc/mean@4", 1, None]
    }


def test_only_whole_lines_are_read_each_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert list(metrics_rows(file, 0)) == []
    file.write_bytes(
        b'{"step": 0, "time": 1.5, "a/b": 2, "c": null, "d": NaN, "e": "x", "f": true}\n' + b"\x00\xff{\n[1]\n{"
    )
    found = list(metrics_rows(file, 0))
    assert [line for line, _ in found] == [MetricsRow(0, 1.5, {"a/b": 2.0}), None, None]
    end = found[-1][1]
    assert list(metrics_rows(file, end)) == []
    with file.open("ab") as opened:
        opened.write(b'"step": 1, "time": 2}\n')
    assert [line for line, _ in metrics_rows(file, end)] == [MetricsRow(1, 2.0, {})]
    assert parse(b'{"step": "x", "time": 1}') is None


def test_of_a_file_that_was_begun_anew_all_is_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0, "time": 1}\n')
    assert [line and line.step for line, _ in metrics_rows(file, 10_000)] == [0]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"id": "x"}', '{"id": 1, "offset": "y"}'])
def test_a_damaged_bookmark_is_a_new_one(tmp_path: Path, damage: str) -> None:
    (tmp_path / "wandb.json").write_text(damage)
    bookmark = Bookmark(tmp_path, "wandb")
    bookmark.put(7)
    bookmark.close()
    again = Bookmark(tmp_path, "wandb")
    assert (again.id, again.offset) == (bookmark.id, 7)
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_real_package_takes_every_row(name: str, tmp_path: Path) -> None:
    """Where it is installed; into files of this machine."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    made = configured(tmp_path, name)
    config = made.model_copy(update={"metrics": made.metrics.model_copy(update={"offline": True})})
    where = layout_of(config)
    where.folder.mkdir(parents=True)
    where.config.write_text(config.model_dump_json())
    write(where, 0, 1, 2)
    command = [sys.executable, "-m", "rhymed_broker.telemetry", name, str(where.config)]
    sent = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=sent, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    taken = json.loads((where.folder / "sinks" / f"{name}.json").read_text())["offset"]
    assert taken == where.metrics.stat().st_size
    if name == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
        (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
        history = client.get_metric_history(run.info.run_id, "reward/mean")
        assert [(one.step, one.value) for one in history] == [(0, 0.0), (1, 0.1), (2, 0.2)]
