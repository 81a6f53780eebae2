"""Fitting again after every epoch: when, at which priority, and that nothing depends on it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.histospec.heads import refit
from rhymed.histospec.heads.refit import Refit, epoch_of


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    made = layout_of(Config.model_validate({"run": {"name": "run", "folder": str(tmp_path)}}))
    (made.folder / "logs").mkdir(parents=True)
    return made


def trained(layout: RunLayout, epoch: int) -> None:
    with layout.metrics.open("a") as file:
        file.write(json.dumps({"step": epoch, "training/epoch": float(epoch)}) + "\n")


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """What runs instead of Python; it writes its arguments, one call a line."""
    called = tmp_path / "called"
    script = tmp_path / "python"
    script.write_text("\n".join(("#!/bin/sh", f'echo "$@" >> {called}', *lines)) + "\n")
    script.chmod(0o755)
    monkeypatch.setattr(refit.sys, "executable", str(script))
    monkeypatch.setattr(refit, "LOOK_S", 0.01)
    return called


async def until(condition, deadline_s: float = 60.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


async def looked(refit: Refit) -> asyncio.Task[None]:
    """It follows the run, and knows the epoch that it has found there."""
    following = asyncio.create_task(refit.follow())
    await until(lambda: refit.fitted is not None)
    return following


def calls(called: Path) -> list[str]:
    return called.read_text().splitlines() if called.exists() else []


def test_the_epoch_is_that_of_the_last_whole_line(layout):
    assert epoch_of(layout.metrics) is None
    trained(layout, 0)
    trained(layout, 1)
    with layout.metrics.open("a") as file:
        file.write('{"eval/mean": 1.0}\n{"step": 9, "training/ep')
    assert epoch_of(layout.metrics) == 1


async def test_a_head_is_fitted_after_each_epoch_that_has_ended(layout, tmp_path, monkeypatch):
    told: list[str] = []
    called = program(tmp_path, monkeypatch)
    trained(layout, 3)  # a run that goes on
    following = await looked(Refit(layout, told.append))
    assert calls(called) == []
    for count, epoch in enumerate((4, 5), 1):
        trained(layout, epoch)
        await until(lambda count=count: len(calls(called)) == count)
    following.cancel()
    assert calls(called)[0] == f"-m rhymed drafter fit {layout.folder} --spare"
    assert told == []


async def test_a_fit_that_fails_is_told_and_changes_nothing(layout, tmp_path, monkeypatch):
    told: list[str] = []
    program(tmp_path, monkeypatch, "exit 1")
    trained(layout, 0)
    following = await looked(Refit(layout, told.append))
    trained(layout, 1)
    await until(lambda: bool(told))
    assert "the head of epoch 1 is not fitted, so the one before goes on" in told[0]
    assert not following.done()
    following.cancel()


async def test_the_end_of_the_run_ends_a_fit(layout, tmp_path, monkeypatch):
    place = tmp_path / "pid"
    program(tmp_path, monkeypatch, f"echo $$ > {place}", "exec sleep 600")
    trained(layout, 0)
    following = await looked(Refit(layout, print))
    trained(layout, 1)
    await until(lambda: place.exists() and place.read_text().strip())
    following.cancel()
    pid = int(place.read_text())
    await until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
