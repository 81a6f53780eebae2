"""Both ends of the shared record; the writer in a process of its own. What is wrapped of vLLM: see test_vllm."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rhymed.histospec.plugin import runner_v2_class
from rhymed.histospec.versions import RUNNER
from rhymed_workers.engines import activity
from rhymed_workers.engines.activity import ACTIVITY_FILE, BUSY, KINDS, ActivityReader, ActivityWriter, kind_of

WRITER = """
import select, sys, time
from pathlib import Path
from rhymed_workers.engines.activity import KINDS, ActivityWriter
began = last = time.monotonic()
writer = ActivityWriter(Path(sys.argv[1]))
idle = longest = 0.0
print(began, flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for kind in range(len(KINDS)):
        writer.enter(kind)
        now = time.monotonic()
        longest = max(longest, now - last)
        idle += now - last if kind < 2 else 0.0
        last = now
whole = time.monotonic() - began
writer.enter(0)
print(whole, idle, longest, flush=True)
"""
"""Until its input ends. Tells when it began; at the end: how long that was, how much of it it was idle, at the most,
and the longest time between two records.
"""


@pytest.fixture
def reader() -> Any:
    reader = ActivityReader()
    yield reader
    reader.close()
    assert not reader.path.exists()


def test_seconds_of_the_present_activity_count_up_to_now(reader: ActivityReader) -> None:
    assert Path(reader.path).stat().st_mode & 0o077 == 0, "nobody else may write it"
    began = time.monotonic()
    writer = ActivityWriter(reader.path)
    assert set(reader.seconds()) == set(BUSY)
    assert sum(reader.seconds().values()) == 0
    writer.enter(KINDS.index("verify"))
    time.sleep(0.05)
    first = reader.seconds()
    assert first["verify"] >= 0.05
    before = writer.enter(KINDS.index("draft"))
    assert writer.enter(before) == KINDS.index("draft")
    writer.enter(KINDS.index("idle"))
    assert reader.path.is_relative_to("/proc"), "nothing is left behind by who is killed"
    last = reader.seconds()
    time.sleep(0.02)
    assert reader.seconds() == last, "idle is not busy"
    assert first["verify"] <= last["verify"] <= time.monotonic() - began


def test_a_reader_never_sees_half_a_record(reader: ActivityReader) -> None:
    command = [sys.executable, "-c", WRITER, str(reader.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        began, back, late = float(writer.stdout.readline()), 0.0, 0.0
        before = reader.seconds()
        until = time.monotonic() + 0.5
        for look in itertools.count():
            asked, reported, now = time.monotonic(), reader.seconds(), time.monotonic()
            back, late = max(back, *(before[name] - reported[name] for name in BUSY)), max(late, now - asked)
            assert sum(reported.values()) <= now - began + 1e-3
            before = reported
            if look > 1000 and now > until:
                break
        whole, idle, longest = map(float, writer.communicate(timeout=60)[0].split())
    assert back <= longest + late + 1e-3, "a reader is ahead by what either end was stopped, and no more"
    assert whole - idle - 1e-3 <= sum(reader.seconds().values()) <= time.monotonic() - began


def test_where_nobody_writes_a_request_counts_as_decoding(reader: ActivityReader) -> None:
    assert reader.seconds() == {"decode": 0}
    with reader.working(), reader.working():
        time.sleep(0.01)
    reported = reader.seconds()["decode"]
    assert reported >= 0.01
    assert reader.seconds() == {"decode": reported}


def step(scheduled: dict[str, int], drafts: dict[str, list[int]] | None = None) -> Any:
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(scheduled.values()),
        num_scheduled_tokens=scheduled,
        scheduled_spec_decode_tokens=drafts or {},
    )


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (step({}), "idle"),
        (step({"a": 1, "b": 1}), "decode"),
        (step({"a": 4, "b": 1}, {"a": [7, 8, 9]}), "verify"),
        (step({"a": 4, "b": 1}), "prefill"),
        (step({"a": 4, "b": 20}, {"a": [7, 8, 9]}), "prefill"),
    ],
)
def test_what_a_step_does(given: Any, kind: str) -> None:
    assert KINDS[kind_of(given)] == kind


@pytest.mark.filterwarnings("ignore")  # vLLM's own
@pytest.mark.parametrize("module", ["vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"])
def test_steps_of_either_model_runner_count(
    module: str, reader: ActivityReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    first = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    runner_class = importlib.import_module(module).GPUModelRunner
    monkeypatch.setenv(ACTIVITY_FILE, str(reader.path))
    monkeypatch.delenv(RUNNER, raising=False)

    def execute_model(runner: Any, scheduler_output: Any, dummy_run: bool = False) -> str:
        return "made"

    for name in ("execute_model", "propose_draft_token_ids"):
        monkeypatch.setattr(first, name, execute_model)
    monkeypatch.setattr(runner_class, "execute_model", execute_model)
    assert activity.install()
    assert activity.install()
    runner = SimpleNamespace(parallel_config=SimpleNamespace(rank=0))
    assert runner_class.execute_model(runner, step({"a": 1}), dummy_run=True) == "made"
    assert reader.seconds() == {"decode": 0}, "nothing is written yet"
    assert runner_class.execute_model(runner, step({"a": 4, "b": 1}, {"a": [7, 8, 9]})) == "made"
    time.sleep(0.01)
    assert runner_class.execute_model(runner, step({})) == "made"
    reported = reader.seconds()
    assert reported["verify"] >= 0.01
    assert sum(reported.values()) == reported["verify"]


def test_an_engine_of_the_first_runner_does_not_load_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNNER, "0")
    assert runner_v2_class() is None
