"""Ctrl-C at every moment of a sweep, and runs that cannot be started. A run here is a thread that is interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.api.child import Outcome
from rhymed.launch.events import AnyEvent
from rhymed.sweep import execute
from rhymed.sweep.execute import Executor
from rhymed.sweep.places import Places
from rhymed.sweep.plan import Job, plan
from tests.sweep.test_sweep import OPTIONS, task

__all__ = ["task"]


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class Run:
    """Instead of a process: ends when it is interrupted."""

    made: list[Run]
    while_starting: Callable[[], None]

    def __init__(self, arguments: list[str], environment: Any) -> None:
        self.over = threading.Event()
        Run.made.append(self)
        Run.while_starting()

    def interrupt(self) -> None:
        self.over.set()

    def follow(self, display: Any) -> Outcome:
        assert self.over.wait(60)
        return Outcome(interrupted=True)


class Screen:
    """Presses Ctrl-C when `at` is shown."""

    def __init__(self, at: str) -> None:
        self.at, self.shown = at, list[str]()

    def show(self, what: str) -> None:
        self.shown.append(what)
        if what == self.at:
            press()

    def started(self, job: Job) -> None:
        self.show("started")

    def heard(self, job: Job, event: AnyEvent) -> None:
        pass

    def ended(self, job: Job, outcome: Outcome) -> None:
        self.show("failed" if outcome.error else "ended")

    def tick(self) -> None:
        self.show("tick")

    def stopping(self, runs: int) -> None:
        self.show("stopping")


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    Run.made, Run.while_starting = [], lambda: None
    monkeypatch.setattr(execute, "Child", Run)
    monkeypatch.setattr(execute, "LOOK_S", 0.05)


@pytest.mark.parametrize("at", ["started", "tick", "stopping", "ended", "starting"])
def test_no_moment_of_ctrl_c_leaves_a_run(task: Path, at: str) -> None:
    sweep = plan(task, OPTIONS)
    view = Screen("started" if at == "stopping" else at)
    if at == "starting":
        Run.while_starting = press
    if at == "ended":
        Run.while_starting = lambda: Run.made[0].over.set()
    if at == "stopping":  # twice
        view.stopping = lambda runs: press()  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGINT)
    executor = Executor(sweep, Places([{}]), view)
    executor.run(sweep.jobs)
    assert executor.interrupted
    assert len(Run.made) == 1
    assert all(one.over.is_set() for one in Run.made)
    assert view.shown.count("ended") == 1
    assert executor.failed == ([] if at != "ended" else [sweep.jobs[0]])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_that_cannot_be_started_fails_alone(task: Path) -> None:
    def refuse() -> None:
        Run.made[-1].over.set()
        if len(Run.made) == 1:
            raise OSError("no memory")

    Run.while_starting = refuse
    sweep, view = plan(task, OPTIONS), Screen("")
    executor = Executor(sweep, Places([{}]), view)
    executor.run(sweep.jobs)
    assert view.shown == ["started", "failed", "started", "ended"]
    assert [job.name for job in executor.failed] == ["lr-1e-6", "lr-1e-5"], "the second was interrupted from outside"
