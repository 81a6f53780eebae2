"""One `rhymed run` from start to summary: starts the processes, shows the run, writes its summary and report.

`session` is the run; `last_upload` follows where it has a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from rhymed.core.config import Config
from rhymed.core.messages import Queues
from rhymed.core.output import show
from rhymed.core.run import state
from rhymed.core.run.client import poll
from rhymed.core.run.folder import Held, read_metrics
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.lease import SharedLease
from rhymed.core.service.service import EX_HOPELESS
from rhymed.core.service.stdio import survive_hangup
from rhymed.core.tasks import watched
from rhymed.core.text import quoted
from rhymed.placement import gpus
from rhymed.placement.gpus import visible
from rhymed.placement.local import LocalStarter, Starter
from rhymed.placement.plan import Command, commands
from rhymed.start.launch import rows
from rhymed.start.launch.scaling import Scaling
from rhymed.start.launch.screen import Screen
from rhymed.start.launch.supervisor import Supervisor

LOOK_S = 0.5  # between looks at the run's folder
REPORT_S = 30.0  # it usually takes seconds
LONGEST_S = 6 * 3600.0  # of an upload, which a signal ends at once

UNWRITTEN = ("waiting", "running", "turned", "acting")  # states of samples, docs/ledger.md


async def session(config: Config, layout: RunLayout, held: Held, lease: SharedLease, view: Screen) -> tuple[int, str]:
    """The exit status: 0 finished, 1 failed, 2 failed and a restart cannot help, 130 interrupted; and the failure."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    survive_hangup()
    state.forget_end(layout.folder)
    await asyncio.to_thread(rows.keep, config, layout.folder)
    with view:
        async with (
            _starter(config, layout, view) as starter,
            Supervisor(await _commands(config, layout), layout.log, view.report, starter) as supervisor,
        ):
            looking = watched(_look(held, lease), supervisor.fail)
            scaling = Scaling(config, layout, supervisor, view.report)
            following = watched(scaling.follow(), supervisor.fail)
            only = config.trainer.steps == 0
            finished, last = await _watch(layout, supervisor, view, stop, evaluates_only=only, seen=scaling.see)
            for task in (looking, following):
                task.cancel()
            view.closing(finished, supervisor.failure)
    status, failure = 0 if finished else 130, supervisor.failure
    if failure:
        status = EX_HOPELESS if supervisor.hopeless else 1
    elif finished and await asyncio.to_thread(_learned_nothing, layout):
        status = 1
        failure = (
            f"all samples were dropped, and nothing was learned: rhymed logs {quoted(layout.folder)} shows the reason"
        )
    state.note_end(layout.folder, status, failure, last.steps if last else 0)
    shutil.rmtree(layout.sockets, ignore_errors=True)
    show(await asyncio.to_thread(_summary, config, layout), flush=True)
    if config.run.report and layout.metrics.exists():
        show(await _report(layout), flush=True)
    if config.run.remote:
        show(await last_upload(layout.config, stop, patient=finished), flush=True)
    if layout.metrics.exists():
        show(f"view     rhymed view {quoted(layout.folder)}", flush=True)
    resume = "" if config.trainer.steps == 0 else f"; resume with: rhymed run --resume {quoted(layout.folder)}"
    if failure and resume and not (supervisor.lost or finished):
        failure += f"\nall stored samples are kept{resume}"
    elif not (failure or finished):
        show(f"interrupted{resume}", flush=True)
    return status, failure


async def _commands(config: Config, layout: RunLayout) -> list[Command]:
    if config.placement.engine == "ray":
        return commands(config, layout.config, everywhere=True)
    return commands(config, layout.config, visible(config, await asyncio.to_thread(gpus.here)))


@contextlib.asynccontextmanager
async def _starter(config: Config, layout: RunLayout, view: Screen) -> AsyncIterator[Starter]:
    """The engine that places processes, until all of them have ended."""
    if config.placement.engine == "local":
        yield LocalStarter()
        return
    from rhymed.placement.ray.starter import starting

    async with starting(config, layout, view.report) as starter:
        yield starter


async def _look(held: Held, lease: SharedLease) -> None:
    """Raises `FilesLost`."""
    while True:
        await asyncio.sleep(LOOK_S)
        held.check()
        lease.check()


def _learned_nothing(layout: RunLayout) -> bool:
    from rhymed.core.run.metrics import learned_nothing

    return learned_nothing(read_metrics(layout))


def _summary(config: Config, layout: RunLayout) -> str:
    from rhymed.show.summary import summary

    try:
        return summary(config, layout)
    except OSError as error:  # a full disk must not hide what ended the run
        return f"no summary: {error}"


async def _report(layout: RunLayout) -> str:
    """No content of a run's folder may delay the end for long."""
    late = f"it took longer than {REPORT_S:g} s"
    done, why = await _own_process(["report", str(layout.folder), "--ended"], asyncio.sleep(REPORT_S), late)
    return f"report   {done or f'none: {why}; to write it: rhymed report {quoted(layout.folder)}'}"


async def _own_process(words: list[str], enough: Coroutine[Any, Any, Any], late: str) -> tuple[str, str]:
    """What a command printed that has a process of its own, or why it did not complete. It is killed when `enough` is
    done, or after hours: `late`."""
    command = [sys.executable, "-m", "rhymed", *words]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    writing, stopped = asyncio.create_task(process.communicate()), asyncio.create_task(enough)
    await asyncio.wait({writing, stopped}, timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not writing.done():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            process.kill()
        await writing
        return "", late
    output, errors = writing.result()
    why = errors.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("rhymed: ")
    return ("", why or f"status {process.returncode}") if process.returncode else (output.decode().strip(), "")


async def _watch(
    layout: RunLayout,
    supervisor: Supervisor,
    view: Screen,
    stop: asyncio.Event,
    *,
    evaluates_only: bool,
    seen: Callable[[Queues], None] = lambda _: None,
) -> tuple[bool, Queues | None]:
    """Show snapshots until the run has finished (True), failed or been interrupted (False); also the last one."""
    last: Queues | None = None
    position = furthest = (0, 0)
    async for queues in poll(layout):
        view.show(queues)
        last = queues or last
        if queues is not None:
            generated = sum(count for state, count in queues.queues.items() if state not in UNWRITTEN)
            before, position = position, (queues.step, generated)
            if position > before:
                supervisor.progressed(further=position > furthest)
            furthest = max(furthest, position)
            seen(queues)
            if queues.paused:  # it cannot progress, so no failure counts
                supervisor.progressed(further=True)
        if queues is not None and queues.finished:
            return True, last
        if supervisor.left("broker"):  # it finished between two snapshots
            return last is not None and last.step >= last.steps and (last.steps > 0 or evaluates_only), last
        if stop.is_set() or supervisor.failed.is_set():
            return False, last
    return False, last


# The last upload of a run that has ended: what is new since the uploader's last look, and the run given back.

INTERRUPTED_S = 60.0  # a user who interrupts a run wants it to end


async def last_upload(config_file: Path, stop: asyncio.Event, *, patient: bool) -> str:
    """A line for people. `stop`: is set by a signal; `patient`: the run has finished."""
    show(f"upload   writing what is new{' (Ctrl-C leaves it out)' if patient else ''}", flush=True)
    enough = stop.wait() if patient else asyncio.sleep(INTERRUPTED_S)
    done, why = await _own_process(["upload", "--once", str(config_file)], enough, "it was ended")
    again = f"the copy is as of its last backup; to complete it: rhymed upload --once {quoted(config_file)}"
    return f"upload   {done or f'not completed: {why}; {again}'}"
