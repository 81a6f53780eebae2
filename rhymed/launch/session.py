"""One `rhymed run` from start to summary: the processes, the watcher that shows them, the end."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time

from rhymed.config import Config
from rhymed.launch.screen import Screen
from rhymed.launch.supervisor import Supervisor, commands
from rhymed.messages import Queues
from rhymed.run.client import poll
from rhymed.run.layout import RunLayout
from rhymed.service.service import EX_HOPELESS
from rhymed.service.stdio import survive_hangup

REPORT_S = 30.0  # seconds are usual


async def session(config: Config, where: RunLayout, *, plain: bool) -> int:
    """Returns the exit status: 0 finished, 1 failed, 2 failed by what a person has to change, 130 interrupted."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    survive_hangup()
    started = time.monotonic()
    with Screen(config, where, plain=plain) as screen:
        async with Supervisor(commands(config, where.config), where.log, screen.tell) as supervisor:
            finished = await _watch(where, supervisor, screen, stop, evaluates_only=config.trainer.steps == 0)
            screen.closing(finished)
    shutil.rmtree(where.sockets, ignore_errors=True)
    print(await asyncio.to_thread(_summary, config, where, time.monotonic() - started), flush=True)
    if config.run.report and where.metrics.exists():
        print(await _report(where), flush=True)
    again = "" if config.trainer.steps == 0 else f"; go on with: rhymed run --resume {where.folder}"
    if supervisor.failure:
        print(f"run failed: {supervisor.failure}", flush=True)
        if again:
            print(f"what is stored is kept{again}", flush=True)
        return EX_HOPELESS if supervisor.hopeless else 1
    if not finished:
        print(f"interrupted{again}{_from_where(where) if again else ''}", flush=True)
    return 0 if finished else 130


def _from_where(where: RunLayout) -> str:
    from rhymed.run.checkpoint import checkpoints_in

    steps = max((one.step for one in checkpoints_in(where.checkpoints)), default=0)
    return (
        f"\ntraining goes on after step {steps}, the newest checkpoint; what was written since is not written again"
    )


def _summary(config: Config, where: RunLayout, elapsed_s: float) -> str:
    from rhymed.report.summary import summary

    try:
        return summary(config, where, elapsed_s)
    except OSError as error:  # a full disk must not hide what ended the run
        return f"no summary: {error}"


async def _report(where: RunLayout) -> str:
    """Made by a process of its own: nothing that stands in a run's folder may hold up the run's end for long."""
    ask = [sys.executable, "-m", "rhymed", "report", str(where.folder), "--ended"]
    process = await asyncio.create_subprocess_exec(
        *ask, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        said, wrong = await asyncio.wait_for(process.communicate(), REPORT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"report   none: it took longer than {REPORT_S:g} s; to have it: rhymed report {where.folder}"
    if process.returncode:
        why = wrong.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("rhymed: ")
        return f"report   none: {why or f'status {process.returncode}'}"
    return f"report   {said.decode().strip()}"


async def _watch(
    where: RunLayout, supervisor: Supervisor, screen: Screen, stop: asyncio.Event, *, evaluates_only: bool
) -> bool:
    """Show what the broker tells until the run has finished (True), failed or been interrupted (False)."""
    last: Queues | None = None
    reached = furthest = (0, 0)
    async for queues in poll(where):
        screen.show(queues)
        last = queues or last
        if queues is not None:
            before, reached = reached, _reached(queues)
            if reached > before:
                supervisor.progressed(further=reached > furthest)
            furthest = max(furthest, reached)
            if queues.paused:
                supervisor.progressed(
                    further=True
                )  # it stands because a person said so: no death is held against anybody
        if queues is not None and queues.finished:
            return True
        if supervisor.left("broker"):  # between two looks of ours
            return last is not None and last.step >= last.steps and (last.steps > 0 or evaluates_only)
        if stop.is_set() or supervisor.failed.is_set():
            return False
    return False


def _reached(queues: Queues) -> tuple[int, int]:
    """How far the run is: steps trained, and samples of the open ones that are written."""
    return queues.step, sum(count for state, count in queues.queues.items() if state not in ("waiting", "running"))
