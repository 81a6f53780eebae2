"""One `rhymed run` from start to summary: starts the processes, shows the run, writes its summary and report."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable

from rhymed.config import Config
from rhymed.gpus import inventory
from rhymed.gpus.placement import visible
from rhymed.histospec.heads.refit import Refit
from rhymed.launch import rows
from rhymed.launch.crew import Crew
from rhymed.launch.events import View
from rhymed.launch.supervisor import Supervisor
from rhymed.launch.upload import last_upload
from rhymed.messages import Queues
from rhymed.output import show
from rhymed.placement.local import LocalStarter
from rhymed.placement.plan import Command, commands
from rhymed.placement.starter import Starter
from rhymed.run import state
from rhymed.run.client import poll
from rhymed.run.folder import Held
from rhymed.run.layout import RunLayout
from rhymed.run.lease.shared import SharedLease
from rhymed.service.service import EX_HOPELESS
from rhymed.service.stdio import survive_hangup
from rhymed.tasks import watched

LOOK_S = 0.5  # between looks at the run's folder
REPORT_S = 30.0  # it usually takes seconds

UNWRITTEN = ("waiting", "running", "turned", "acting")  # states of samples, docs/ledger.md


async def session(config: Config, layout: RunLayout, held: Held, lease: SharedLease, view: View) -> int:
    """Returns the exit status: 0 finished, 1 failed, 2 failed and a restart cannot help, 130 interrupted."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    survive_hangup()
    state.forget_end(layout.folder)
    started = time.monotonic()
    await asyncio.to_thread(rows.keep, config, layout.folder)
    with view:
        async with (
            _starter(config, layout, view) as starter,
            Supervisor(await _commands(config, layout), layout.log, view.report, starter) as supervisor,
        ):
            looking = watched(_look(held, lease), supervisor.fail)
            crew = Crew(config, layout, supervisor, view.report)
            following = [watched(crew.follow(), supervisor.fail)]
            if config.drafts.refit == "epoch":
                following.append(watched(Refit(layout, view.report).follow(), supervisor.fail))
            only = config.trainer.steps == 0
            finished, last = await _watch(layout, supervisor, view, stop, evaluates_only=only, seen=crew.see)
            for task in (looking, *following):
                task.cancel()
            view.closing(finished, supervisor.failure)
    status = 0 if finished else 130
    if supervisor.failure:
        status = EX_HOPELESS if supervisor.hopeless else 1
    state.note_end(layout.folder, status, supervisor.failure, last.steps if last else 0)
    shutil.rmtree(layout.sockets, ignore_errors=True)
    show(await asyncio.to_thread(_summary, config, layout, time.monotonic() - started), flush=True)
    if config.run.report and layout.metrics.exists():
        show(await _report(layout), flush=True)
    if config.run.remote:
        show(await last_upload(layout.config, stop, patient=finished), flush=True)
    if layout.metrics.exists():
        show(f"view     rhymed view {layout.folder}", flush=True)
    resume = "" if config.trainer.steps == 0 else f"; resume with: rhymed run --resume {layout.folder}"
    if supervisor.failure:
        kept = "" if supervisor.lost or not resume else f"\nall stored samples are kept{resume}"
        view.failed(supervisor.failure + kept)
    elif not finished:
        show(f"interrupted{resume}{_resume_point(layout) if resume else ''}", flush=True)
    return status


async def _commands(config: Config, layout: RunLayout) -> list[Command]:
    if config.placement.engine == "ray":
        return commands(config, layout.config, everywhere=True)
    return commands(config, layout.config, visible(config, await asyncio.to_thread(inventory.here)))


@contextlib.asynccontextmanager
async def _starter(config: Config, layout: RunLayout, view: View) -> AsyncIterator[Starter]:
    """The engine that places processes, until all of them have ended."""
    if config.placement.engine == "local":
        yield LocalStarter()
        return
    from rhymed.placement.ray.starter import RayStarter

    async with RayStarter(config, layout, view.report) as starter:
        yield starter


async def _look(held: Held, lease: SharedLease) -> None:
    """Raises `FilesLost`."""
    while True:
        await asyncio.sleep(LOOK_S)
        held.check()
        lease.check()


def _resume_point(layout: RunLayout) -> str:
    from rhymed.run.checkpoint import checkpoints_in

    steps = max((checkpoint.step for checkpoint in checkpoints_in(layout.checkpoints)), default=0)
    return (
        f"\ntraining will continue after step {steps}, the newest checkpoint; samples of later steps are stored and"
        " will not be generated again"
    )


def _summary(config: Config, layout: RunLayout, elapsed_s: float) -> str:
    from rhymed.report.summary import summary

    try:
        return summary(config, layout, elapsed_s)
    except OSError as error:  # a full disk must not hide what ended the run
        return f"no summary: {error}"


async def _report(layout: RunLayout) -> str:
    """Written by a child process with a time limit: no content of a run's folder may delay the end for long."""
    command = [sys.executable, "-m", "rhymed", "report", str(layout.folder), "--ended"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), REPORT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            process.kill()
        await process.wait()
        return f"report   none: it took longer than {REPORT_S:g} s; to write it: rhymed report {layout.folder}"
    if process.returncode:
        why = errors.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("rhymed: ")
        return f"report   none: {why or f'status {process.returncode}'}"
    return f"report   {output.decode().strip()}"


async def _watch(
    layout: RunLayout,
    supervisor: Supervisor,
    view: View,
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
