"""Mistakes that people make, through the real command: what the terminal says, where, and with which exit status."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from rhymed.core.config.load import load_config
from rhymed.core.messages import PROTOCOL, Join
from rhymed.core.run.layout import layout_of
from rhymed.core.wire.sockets import Client
from rhymed.start.cli import main
from rhymed.start.launch.supervisor import FULL_BYTES
from tests.disks import fill, small_disk
from tests.stress.run import part_of

REWARD = """
def good(completions, **columns):
    return [float(len(text)) for text in completions]
def raises(completions, **columns):
    raise KeyError("colour")
def hangs(completions, **columns):
    while True:
        pass
def count(completions, **columns):
    return [1.0, 2.0]
def nan(completions, **columns):
    return [float("nan")]
def nothing(completions, **columns):
    return None
def words(completions, **columns):
    return ["good"]
"""

CONFIG = """
[run]
name = "bad"
folder = "{folder}/runs"
[model]
path = "{model}"
dtype = "float32"
[data]
path = "{folder}/rows.jsonl"
[rollout]
engine = "trace"
prompts_per_step = 2
group_size = 2
max_prompt_length = 32
max_response_length = 8
[trace]
mean_length = 4
step_s = 0.005
vocabulary = 258
[reward]
scorer = "{folder}/reward.py:good"
processes = 1
[trainer]
epochs = 1
threads = 1
[schedule]
heartbeat_s = 0.3
lost_after_s = 20
[store]
map_gib = 0.1
"""


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(4)))
    file = tmp_path / "bad.toml"
    file.write_text(CONFIG.format(folder=tmp_path, model=tiny_model))
    return file


def rhymed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rhymed", *map(str, arguments)]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, env=os.environ
    )


NO_MODEL = ("-o", "trainer.engine=trace")
"""What is wrong in these runs is not the training, and torch alone takes four seconds of CPU."""


def run(config: Path, *changes: str, status: int = 2) -> str:
    options = [word for change in changes for word in ("-o", change)]
    done = rhymed("run", "--plain", config, *NO_MODEL, *options)
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def refused(config: Path, *changes: str) -> str:
    """The output of a run that is refused before anything starts."""
    options = [word for change in changes for word in ("-o", change)]
    return here("run", "--plain", config, *options, status=2)


def here(*arguments: object, status: int) -> str:
    """The output of a command in this process: many starts of Python take minutes."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert main([*map(str, arguments)]) == status, said.getvalue()
    return said.getvalue()


# Settings


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("trainer.lrr=1", r"-o trainer.lrr=1: unknown key trainer.lrr; did you mean lr?"),
        ("trainr.lr=1", "-o trainr.lr=1: unknown section trainr; did you mean trainer?"),
        ("trainer.epochs=two", "trainer.epochs = 'two': a whole number without quotes is needed"),
        ("rollout.top_p=0", "rollout.top_p = 0: it must be greater than 0"),
        ("trainer.minibatches=3", "does not divide the 4 samples of a step"),
        ("rollout.max_response_length=900", "has a context of 512 tokens, less than rollout.max_prompt_length"),
        ("model.path=no/such", "model.path = 'no/such'"),
        ("run.folder=/dev/null", "run.folder: /dev/null is a file"),
    ],
)
def test_settings(config: Path, change: str, said: str) -> None:
    assert said in refused(config, change)
    assert not (config.parent / "runs").exists()


def test_what_is_no_configuration(config: Path) -> None:
    binary = config.parent / "binary"
    binary.write_bytes(b"\x7fELF\xff\xfe")
    assert "Is a directory; give a TOML file" in refused(config.parent)
    assert "not UTF-8 text" in refused(binary)
    assert "No such file or directory (relative to" in refused(config.parent / "none.toml")


# Data


def damaged(kind: str, rows: bytes) -> bytes:
    import gzip

    made: dict[str, Callable[[], bytes]] = {
        "gzip": lambda: gzip.compress(rows),
        "utf16": lambda: rows.decode().encode("utf-16"),
        "rubbish": lambda: bytes(range(128, 256)),
        "array": lambda: b"[\n" + b",\n".join(rows.splitlines()) + b"\n]",
        "csv": lambda: b"prompt,answer\nsay 1,2\n",
        "pretty": lambda: json.dumps({"prompt": "x"}, indent=1).encode(),
        "pointer": lambda: b"version https://git-lfs.github.com/spec/v1\n",
        "empty": lambda: b"",
        "column": lambda: rows.replace(b'"prompt"', b'"words"'),
        "copies": lambda: b'{"prompt": "same"}\n' * 5,
        "long": lambda: rows + json.dumps({"prompt": "x" * 50}).encode(),
        "number": lambda: rows + b'{"prompt": 3}\n',
    }
    return made[kind]()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("gzip", "line 1: not UTF-8 text"),
        ("utf16", "line 1: not UTF-8 text"),
        ("rubbish", "line 1: not UTF-8 text"),
        ("array", "it begins: [; a *.jsonl file is UTF-8 text with one JSON object per line"),
        ("csv", "line 1: not JSON (Expecting value, column 1), it begins: prompt,answer; "),
        ("pretty", "it begins: {; a *.jsonl file is UTF-8 text with one JSON object per line"),
        ("pointer", "it begins: version https://git-lfs"),
        ("empty", "the dataset is empty"),
        ("column", "line 1: no column 'prompt'"),
        ("long", "line 5: the prompt has 50 tokens, more than rollout.max_prompt_length = 32"),
        ("number", "line 5: prompt is 3; it must be a string or a list of {role, content}"),
    ],
)
def test_data(config: Path, kind: str, said: str) -> None:
    rows = config.parent / "rows.jsonl"
    rows.write_bytes(damaged(kind, rows.read_bytes()))
    out = refused(config)
    assert said in out
    assert str(rows) in out


def test_names_that_promise_another_kind_of_file(config: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = config.parent / "rows.jsonl"
    wrong = config.parent / "rows.parquet"
    shutil.copy(rows, wrong)
    assert "not a readable parquet file: " in refused(config, f"data.path={wrong}")
    parquet.write_table(pyarrow.table({"prompt": ["a"]}), rows)
    assert "a *.jsonl file is UTF-8 text" in refused(config)


# Model


def test_model_folders(config: Path, tiny_model: Path) -> None:
    for part, said in (("tokenizer.json", "has no tokenizer.json"), ("model.safetensors", "has no weights")):
        folder = config.parent / f"without-{part}"
        shutil.copytree(tiny_model, folder)
        (folder / part).unlink()
        out = refused(config, f"model.path={folder}")
        assert f"{folder} {said}" in out


def test_a_chat_without_a_template_is_reported(config: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"say {n}"}]} for n in range(4)]
    (config.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    engine = ("-o", "rollout.engine=vllm", "-o", "rollout.kv_cache_gib=0.1")
    said = " ".join(here("check", config, *engine, status=0).split())
    assert "has no chat template, so messages are joined by blank lines" in said
    assert "model.chat_template" in said


# Rewards


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raises raised KeyError: 'colour' ({file}, line 5)"),
        ("hangs", "hangs took longer than reward.timeout_s = 0.5 s and was killed"),
        ("count", "count ({file}, line 9) returned 2 rewards for 1 completion"),
        ("nan", "nan ({file}, line 11) returned nan: a reward must be finite"),
        ("nothing", "nothing ({file}, line 13) returned None"),
        ("words", "words ({file}, line 15) returned 'good' (str) instead of a number"),
        ("lost", "{file} has no function 'lost'; it has: good, raises"),
    ],
)
def test_rewards_are_refused_before_the_run_where_the_right_answer_fails(config: Path, name: str, said: str) -> None:
    file = config.parent / "reward.py"
    rows = [{"prompt": f"say {n}", "answer": str(n)} for n in range(4)]
    (config.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = refused(config, f"reward.scorer={file}:{name}", f"reward.timeout_s={0.5 if name == 'hangs' else 60}")
    assert said.format(file=file) in out
    assert not (config.parent / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_reward_that_fails_for_nonsense_is_a_warning_then_the_end(config: Path) -> None:
    out = run(config, f"reward.scorer={config.parent}/reward.py:raises", "trainer.epochs=20")
    warning, end = out.index("warning  reward: scoring 'banana'"), out.index("run failed: reward-0 ended")
    assert warning < out.index("starting store") < end
    assert "and never worked; the first error: raises: raises raised KeyError" in out
    assert f"resume with: rhymed run --resume {config.parent}/runs/bad" in out


# RunLayout and other processes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_resume_with_other_settings_is_refused_and_changes_nothing(config: Path) -> None:
    folder = config.parent / "runs" / "bad"
    lines = run(config, "trainer.steps=1", status=0).splitlines()
    assert f"view     rhymed view {folder}" in lines  # the dashboard's command, when the run's own is gone
    before = (folder / "config.json").read_text()
    said = here("run", "--plain", "--resume", folder, "-o", "run.seed=7", "-o", "trainer.steps=2", status=2)
    assert "belongs to another run: run.seed = 7 (it was 0)" in said
    assert (folder / "config.json").read_text() == before
    assert rhymed("run", "--plain", "--resume", folder, "-o", "trainer.steps=2").returncode == 0
    summary = (folder / "summary.json").read_text()
    again = rhymed("run", "--plain", "--resume", folder)
    assert (again.returncode, again.stdout.count("\n")) == (0, 1)
    assert again.stdout.startswith("finished: all 2 steps are trained")
    assert (folder / "summary.json").read_text() == summary


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_living_run_keeps_strangers_out_and_goes_on(config: Path) -> None:
    folder = config.parent / "runs" / "bad"
    command = [sys.executable, "-m", "rhymed", "run", "--plain", str(config), *NO_MODEL, "-o", "trainer.epochs=10000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as living:
        try:
            assert living.stdout is not None
            until(living.stdout, "1/20000")
            assert "is in use by a running `rhymed run`" in here("run", "--resume", folder, status=2)
            assert "is open in another store process" in rhymed("store", folder / "config.json").stdout
            assert "is already served by a living process" in rhymed("broker", folder / "config.json").stdout
            rubbish(load_config(folder / "config.json"))
            log, end = folder / "logs" / "broker.log", time.monotonic() + 60
            while "message without a readable envelope" not in log.read_text():
                assert time.monotonic() < end, "the broker said nothing of it"
                time.sleep(0.05)
            for _ in range(5):
                until(living.stdout, "/20000")
        finally:
            living.terminate()
            rest, _ = living.communicate(timeout=60)
    assert "interrupted; resume with: rhymed run --resume" in rest


def until(stream: object, text: str) -> None:
    for line in stream:  # type: ignore[attr-defined]
        if re.search(text, line):
            return
    pytest.fail(f"the run ended before it said {text!r}")


def rubbish(config: object) -> None:
    where = layout_of(config)  # type: ignore[arg-type]
    with zmq.Context() as context:
        for address in (where.broker, where.store, where.weights):
            with context.socket(zmq.DEALER) as socket:
                socket.linger = 30_000
                socket.connect(address)
                socket.send(b"rubbish")
                socket.send_multipart([os.urandom(50) for _ in range(4)])
                socket.send(bytes(30 << 20))


async def test_another_protocol_version_is_reported_to_who_joins(tmp_path: Path) -> None:
    from rhymed.core.config import Config
    from rhymed.core.errors import MalformedMessage
    from rhymed_broker.service import BrokerService

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(8)))
    config = Config.model_validate({"run": {"folder": str(tmp_path)}, "data": {"path": str(tmp_path / "rows.jsonl")}})
    where = layout_of(config)
    async with BrokerService(config, where).running():
        client = Client(where.broker, "old", peer="broker")
        join = Join(worker="old", role="reward", host="h", pid=1, slots=1, protocol=PROTOCOL - 1)
        with pytest.raises(MalformedMessage, match=r"this broker .*: install the same release"):
            await client.request(join, deadline_s=20)
        client.close()


# Disk


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_map_holds_the_run_and_more_room_lets_it_go_on(config: Path) -> None:
    folder = config.parent / "runs" / "bad"
    command = [sys.executable, "-m", "rhymed", "run", "--plain", str(config), *NO_MODEL]
    for change in ("store.map_gib=0.0002", "trainer.epochs=10000", "rollout.group_size=64"):
        command += ["-o", change]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said, end = folder / "logs" / "store.log", time.monotonic() + 150
        while not (said.exists() and "raise store.map_gib" in said.read_text()):
            assert process.poll() is None, "a store without room waits for some"
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)
    steps = len((folder / "metrics.jsonl").read_text().splitlines())
    assert steps > 0
    resumed = rhymed(
        "run", "--plain", "--resume", folder, "-o", "store.map_gib=0.1", "-o", f"trainer.steps={steps + 3}"
    )
    assert resumed.returncode == 0, resumed.stdout
    trained = [msgspec.json.decode(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(trained)) == list(range(steps + 3))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_waits_on_a_full_disk_and_continues_when_there_is_room(config: Path) -> None:
    """Its trainer is killed there, too: one that starts on a full disk waits as well."""
    with small_disk(config.parent / "disk", "16m") as disk:
        command = [sys.executable, "-m", "rhymed", "run", "--plain", str(config), *NO_MODEL]
        command += ["-o", f"run.folder={disk}", "-o", "trainer.epochs=10000", "-o", "trainer.checkpoint_every=1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                assert process.stdout is not None
                until(process.stdout, "1/20000")
                ballast = fill(disk, leave=FULL_BYTES // 2)
                until(process.stdout, "waits: .*(full|No space left)")
                children = psutil.Process(process.pid).children()
                (trainer,) = [child for child in children if (part := part_of(child)) and part.role == "trainer"]
                trainer.kill()
                until(process.stdout, "waits: trainer ended, and the disk under .* is full: make room")
                ballast.unlink()
                until(process.stdout, "trainer ended .*; starting it again")
                until(process.stdout, r"\d/20000")
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=100)
            finally:
                process.terminate()  # ended, unless a line above failed
        assert "Traceback" not in out
