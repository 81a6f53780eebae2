"""`rhymed queues`: the broker's queues, and what each worker holds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rhymed.core.output import show_json
from rhymed.core.run.stragglers import shown_states, starting, stragglers
from rhymed.core.style import COLOURS, plain_table
from rhymed.core.text import age, counted, readable, step_name
from rhymed.start.cli.options import add_examples, add_where

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from rhymed.core.messages import Queues, SampleId
    from rhymed.core.run.timeline import Times
    from rhymed.start.cli.steer import Where
SHOWN = 4  # samples listed per worker, the longest held first
NUMBERS = ("samples", "oldest", "holds", "version", "tokens", "for")  # right-aligned columns

PURPOSE = {
    "waiting": "for a rollout worker",
    "running": "being generated",
    "turned": "for an environment worker",
    "acting": "being answered by their environment",
    "generated": "for a reward worker",
    "scoring": "being scored",
    "scored": "for the rest of the step",
    "training": "with the trainer",
    "trained": "done",
    "filtered": "their groups had no signal",
    "dropped": "given up; the store has the reason",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed queues --watch", "rhymed queues runs/quickstart --json")
    parser.add_argument("--watch", action="store_true", help="refresh every second until the run ends")
    parser.add_argument("--json", action="store_true", help="the raw snapshot as JSON (with --watch: one per line)")
    add_where(parser)


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.start.cli.steer import where_of

    where = where_of(arguments, "viewer")
    return asyncio.run(_show(where, watch=arguments.watch, raw=arguments.json))


async def _show(where: Where, *, watch: bool, raw: bool) -> int:
    import msgspec
    from rich.live import Live

    from rhymed.core.console import Terminal
    from rhymed.core.run.client import follow
    from rhymed.core.run.timeline import Progress
    from rhymed.core.wire.sockets import Client

    client, console, progress = Client(where.address, peer="broker", keys=where.keys), Terminal(), Progress()

    def times(snapshot: Queues) -> Times | None:
        if where.folder is None:
            return None
        progress.read(where.folder)
        return progress.times(None if snapshot.paused else snapshot.steps, time.time())

    try:
        snapshots = follow(client, once=not watch)
        if raw:
            async for snapshot in snapshots:
                show_json(msgspec.json.encode(snapshot).decode(), flush=True)
        elif watch and console.is_terminal:
            with Live(console=console, auto_refresh=False) as screen:
                async for snapshot in snapshots:
                    screen.update(render(snapshot, times(snapshot)), refresh=True)
        else:  # into a pipe or file: `Live` would print only the last one
            async for snapshot in snapshots:
                console.print(render(snapshot, times(snapshot)))
                console.file.flush()
        return 0
    finally:
        client.close()


def render(snapshot: Queues, times: Times | None = None) -> RenderableType:
    """`times`: None if the run's folder is not on this machine."""
    from rich.console import Group
    from rich.markup import escape

    state = "finished" if snapshot.finished else f"version {snapshot.version}"
    state += "  [black on yellow] PAUSED [/]" if snapshot.paused else ""
    head = (
        f"run [bold]{snapshot.run}[/]  step {snapshot.step}/{snapshot.steps}  {state}"
        f"  {times.phrase if times else f'up {age(snapshot.uptime_s)}'}  event-loop lag p99 {snapshot.lag_ms:.1f} ms"
    )
    tables: list[RenderableType] = [_queues(snapshot), _steps(snapshot), _workers(snapshot)]
    tables += [f"[red]{escape(worker)}: {what}[/]" for worker, what in stragglers(snapshot).items()]
    tables += [f"[dim]{starting(snapshot)}[/]"] if starting(snapshot) else []
    tables += [f"[bold red]waits: {escape(trouble)}[/]" for trouble in snapshot.troubles]
    if any(row.holding for row in snapshot.workers):
        tables.append(_held(snapshot))
    tables += [f"[yellow]{text}[/]" for text in _disbelieved(snapshot)]
    return Group(head, *tables)


def _disbelieved(snapshot: Queues) -> Iterator[str]:
    """Reports that the broker did not believe, since it started."""
    if count := snapshot.counts.get("unheld", 0):
        yield f"{counted(count, 'report')} ignored: their senders did not hold the samples"
    if count := snapshot.counts.get("unstored", 0):
        yield f"{counted(count, 'sample')} reported, but not in the store: generated again"


def _queues(snapshot: Queues) -> RenderableType:
    table = _table("queue", "samples", "oldest", "")
    for state in shown_states(snapshot):
        depth = snapshot.queues[state]
        oldest = age(snapshot.oldest_s[state]) if state in snapshot.oldest_s else "-"
        table.add_row(_coloured(state, state), str(depth), oldest, f"[dim]{PURPOSE.get(state, '')}[/]")
    return table


def _steps(snapshot: Queues) -> RenderableType:
    table = _table("step", "groups", "open for", "where its samples are")
    for row in snapshot.open_steps:
        states = "  ".join(_coloured(state, f"{count} {state}") for state, count in row.states.items())
        replaced = f", {row.refilled} replaced" if row.refilled else ""
        table.add_row(_step(row.step), f"{row.groups_ready}/{row.groups}{replaced}", age(row.open_s), states)
    return table


def _workers(snapshot: Queues) -> RenderableType:
    from rich.markup import escape

    table = _table("worker", "holds", "version", "heard", "phase")
    for row in snapshot.workers:
        version = "-" if row.role in ("reward", "environment") else str(row.version)
        full = "-" if row.role == "trainer" else f"{len(row.holding)}/{row.slots}"
        phase = "[bold yellow]drained[/] " if row.drained else ""
        phase += escape(row.phase) or "-"
        table.add_row(escape(row.worker), full, version, f"{age(row.silent_s)} ago", phase)
    return table


def _held(snapshot: Queues) -> RenderableType:
    """The samples that each worker has held longest."""
    from rich.markup import escape

    table = _table("worker", "longest held", "tokens", "for")
    for row in snapshot.workers:
        held = sorted(row.holding, key=lambda item: -item.seconds)
        for number, item in enumerate(held[:SHOWN]):
            table.add_row("" if number else escape(row.worker), _sample(item.id), str(item.tokens), age(item.seconds))
        if len(held) > SHOWN:
            table.add_row("", f"[dim]and {len(held) - SHOWN} more[/]", "", "")
    return table


def _sample(sample: SampleId) -> str:
    """The id as `rhymed logs --sample` accepts it."""
    return readable(str(sample))


def _coloured(state: str, text: str) -> str:
    return f"[{COLOURS.get(state, 'white')}]{text}[/]"


def _step(step: int) -> str:
    return step_name(step).removeprefix("step ")


def _table(*columns: str) -> Table:
    table = plain_table()
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    return table
