"""Processes started one by one, as containers are: addresses by name, keys, rows prepared, latecomers."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import DataError
from rhymed.core.run.layout import layout_of
from rhymed.core.wire.keys import ROLES, make_keys
from rhymed.inputs.datasets import load_rows
from rhymed.inputs.prepared import file_of, prepare, rows_of
from rhymed.start.cli import main
from tests.ports import free_ports

REWARD = "def reward(completions, **columns):\n    return [float(len(text) % 7) for text in completions]\n"
PATIENCE_S = 120.0

CONFIG = """
[run]
name = "parts"
folder = "{folder}"
[data]
path = "{folder}/rows.jsonl"
[rollout]
engine = "trace"
prompts_per_step = 2
group_size = 2
[trace]
mean_length = 8
step_s = 0.01
[reward]
scorer = "{folder}/reward.py:reward"
processes = 1
[trainer]
engine = "trace"
steps = 3
[store]
map_gib = 0.25
[net]
broker = "tcp://localhost:{ports[0]}"
store = "tcp://localhost:{ports[1]}"
weights = "tcp://localhost:{ports[2]}"
bind = "127.0.0.1"
http = ""
keys = "{folder}/keys"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(6)))
    file = tmp_path / "parts.toml"
    file.write_text(CONFIG.format(folder=tmp_path, ports=free_ports(3)))
    make_keys(tmp_path / "keys", ROLES)
    return file


def rhymed(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "rhymed", *map(str, arguments)]


def ask(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    with contextlib.ExitStack() as stack:

        def run(*arguments: object) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen(rhymed(*arguments)))
            stack.callback(process.kill)
            return process

        yield run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_started_one_by_one_meet_by_name_and_hear_of_the_end(
    file: Path, start: Callable[..., subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("prepare", file) == 0
    (file.parent / "rows.jsonl").unlink()  # the broker has the rows all the same
    assert ask("health", "broker", file) == 1
    store, broker = start("store", file), start("broker", "--stay", file)
    until(lambda: ask("health", "broker", file) == 0, "the broker answers")
    assert ask("health", "store", file) == 0
    report = start("report", file.parent / "parts", "--wait")
    capsys.readouterr()
    assert ask("health", "reward", file) == 1
    assert "no reward worker of" in capsys.readouterr().out
    reward = start("worker", "--role", "reward", file)
    until(lambda: ask("health", "reward", file) == 0, "the reward worker is heard")
    workers = [start("worker", "--role", role, file) for role in ("trainer", "rollout")]
    assert [process.wait(PATIENCE_S) for process in (*workers, reward)] == [0, 0, 0]
    late = start("worker", "--role", "rollout", file)
    assert late.wait(PATIENCE_S) == 0
    assert report.wait(PATIENCE_S) == 0
    assert "finished" in (file.parent / "parts" / "report.html").read_text()
    assert "elapsed_s" in json.loads((file.parent / "parts" / "summary.json").read_text())
    assert (store.poll(), broker.poll()) == (None, None)
    for process in (broker, store):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    steps = [json.loads(line)["step"] for line in (file.parent / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2]


def test_prepared_rows_are_those_of_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "ä", "answer": [1, null]}\n{"prompt": "b"}\n')
    given = {"data": {"path": str(tmp_path / "rows.jsonl")}, "rollout": {"prompts_per_step": 2}}
    config = Config.model_validate(given)
    read = load_rows(config)
    assert rows_of(config, tmp_path, config.data) == read  # from the dataset itself
    assert prepare(config, tmp_path, config.data) == 2
    (tmp_path / "rows.jsonl").unlink()
    assert rows_of(config, tmp_path, config.data) == read
    other = Config.model_validate({**given, "data": {**given["data"], "limit": 2}})
    with pytest.raises(DataError, match=r"rows\.jsonl"):  # other settings have other rows
        rows_of(other, tmp_path, other.data)
    file_of(config, tmp_path, config.data).write_text("{broken")
    with pytest.raises(DataError, match="rhymed prepare"):
        rows_of(config, tmp_path, config.data)


def test_servers_listen_where_they_should() -> None:
    given = {"net": {"broker": "tcp://broker:5550", "bind": "0.0.0.0"}}
    where = layout_of(Config.model_validate(given))
    assert where.listens(where.broker) == "tcp://0.0.0.0:5550"
    assert where.listens(where.store) == where.store  # ipc
    assert where.broker == "tcp://broker:5550"
    given["net"]["bind"] = "::"
    where = layout_of(Config.model_validate(given))
    assert where.listens(where.broker) == "tcp://[::]:5550"
