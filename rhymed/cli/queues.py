"""`rhymed queues`: what waits where, and what every worker holds, from the broker itself."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.cli.options import add_where, example
from rhymed.marks import COLOURS, age, step_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType
    from rich.table import Table

    from rhymed.keys import Keyring
    from rhymed.messages import Queues, SampleId, WorkerRow
    from rhymed.places import Places

DEADLINE_S = 5.0
REFRESH_S = 1.0
PATIENCE_S = 60.0  # with a broker that was there and does not answer: it may be starting again
RATE = "rollout/tokens_per_s"
SLOW = 1 / 3  # of the usual rate: below, a worker is named
SILENT_S = 5.0
SHOWN = 4  # samples of a worker that are listed one by one, the longest held first
NUMBERS = ("samples", "oldest", "holds", "version", "tokens", "for")  # columns set to the right

PURPOSE = {
    "waiting": "for a rollout worker",
    "running": "being generated",
    "generated": "for a reward worker",
    "scoring": "being scored",
    "scored": "for the rest of the step",
    "training": "with the trainer",
    "trained": "done",
    "dropped": "given up, reason in the store",
}


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "queues",
        help="show every queue of a run, and what each worker holds",
        **example("rhymed queues --watch", "rhymed queues runs/quickstart --json"),
    )
    parser.add_argument("--watch", action="store_true", help="refresh every second until the run ends")
    parser.add_argument("--json", action="store_true", help="the raw snapshot as JSON (with --watch: one a line)")
    add_where(parser)
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.keys import Keyring

    if arguments.broker:
        address, keys = arguments.broker, Keyring("viewer", arguments.keys, arguments.insecure)
    else:
        where = places_of(arguments.run)
        address, keys = where.broker, where.keys("viewer")
    return asyncio.run(_show(address, keys, watch=arguments.watch, raw=arguments.json))


def places_of(folder: Path) -> Places:
    """Of the run in this folder."""
    from rhymed.errors import ConfigError
    from rhymed.load import load_run
    from rhymed.places import places

    file = folder / "config.json"
    if not os.path.exists(file):  # nor may it be seen
        raise ConfigError(f"{file} does not exist: name the run's folder with --run, or --broker ADDRESS")
    return places(load_run(folder))


async def _show(address: str, keys: Keyring, *, watch: bool, raw: bool) -> int:
    import msgspec
    from rich.console import Console
    from rich.live import Live

    from rhymed.wire import Client

    client, console = Client(address, peer="broker", keys=keys), Console()
    try:
        snapshots = _snapshots(client, address, watch)
        if raw:
            async for snapshot in snapshots:
                print(msgspec.json.encode(snapshot).decode(), flush=True)
        elif watch and console.is_terminal:
            with Live(console=console, auto_refresh=False) as screen:
                async for snapshot in snapshots:
                    screen.update(render(snapshot), refresh=True)
        else:  # into a pipe or file one below the other: `Live` would print the last alone
            async for snapshot in snapshots:
                console.print(render(snapshot))
                console.file.flush()
        return 0
    finally:
        client.close()


async def _snapshots(client: Any, address: str, watch: bool) -> AsyncIterator[Queues]:
    """One, or one a second until the run is over. A broker that answered once may start again meanwhile."""
    import asyncio
    import time

    from rhymed.addresses import removed
    from rhymed.errors import DeadlineExceeded, PeerGone

    snapshot = await ask_once(client, address)
    yield snapshot
    heard = time.monotonic()
    while watch and not snapshot.finished:
        await asyncio.sleep(REFRESH_S)
        try:
            snapshot = await _ask(client, address)
        except (DeadlineExceeded, PeerGone):
            if removed(address):
                return
            if time.monotonic() - heard > PATIENCE_S:
                raise
            continue
        heard = time.monotonic()
        yield snapshot


async def ask_once(client: Any, address: str) -> Queues:
    """Raises what tells a person where else to look, when nobody answers."""
    from rhymed.addresses import removed
    from rhymed.errors import ConfigError

    if removed(address):
        raise ConfigError(f"no run is alive at {address}: it has ended, or not begun; --run FOLDER names another")
    return await _ask(client, address)


async def _ask(client: Any, address: str) -> Queues:
    from rhymed.errors import DeadlineExceeded
    from rhymed.messages import GetQueues, Queues

    try:
        answer = (await client.request(GetQueues(), deadline_s=DEADLINE_S)).message
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"no broker answered at {address} within {DEADLINE_S:g} s: is the run alive? `rhymed run` starts one;"
            " --run FOLDER or --broker ADDRESS names another"
        ) from None
    assert isinstance(answer, Queues), f"the broker answered GetQueues with {type(answer).__name__}"
    return answer


def render(snapshot: Queues) -> RenderableType:
    """Pure: the tables of one snapshot."""
    from rich.console import Group
    from rich.markup import escape

    state = "finished" if snapshot.finished else f"version {snapshot.version}"
    state += "  [black on yellow] PAUSED [/]" if snapshot.paused else ""
    head = (
        f"run [bold]{snapshot.run}[/]  step {snapshot.step}/{snapshot.steps}  {state}"
        f"  up {age(snapshot.uptime_s)}  event-loop lag p99 {snapshot.lag_ms:.1f} ms"
    )
    tables: list[RenderableType] = [_queues(snapshot), _steps(snapshot), _workers(snapshot)]
    tables += [f"[red]{escape(worker)}: {what}[/]" for worker, what in culprits(snapshot).items()]
    tables += [f"[bold red]waits: {escape(trouble)}[/]" for trouble in snapshot.troubles]
    if any(row.holding for row in snapshot.workers):
        tables.append(_held(snapshot))
    return Group(head, *tables)


def _queues(snapshot: Queues) -> RenderableType:
    table = _table("queue", "samples", "oldest", "")
    for state, depth in snapshot.queues.items():
        oldest = age(snapshot.oldest_s[state]) if state in snapshot.oldest_s else "-"
        table.add_row(_coloured(state, state), str(depth), oldest, f"[dim]{PURPOSE.get(state, '')}[/]")
    return table


def _steps(snapshot: Queues) -> RenderableType:
    table = _table("step", "groups", "open for", "where its samples are")
    for row in snapshot.open_steps:
        states = "  ".join(_coloured(state, f"{count} {state}") for state, count in row.states.items())
        table.add_row(_step(row.step), f"{row.groups_ready}/{row.groups}", age(row.open_s), states)
    return table


def _workers(snapshot: Queues) -> RenderableType:
    from rich.markup import escape

    table = _table("worker", "holds", "version", "heard", "phase")
    for row in snapshot.workers:
        version = "-" if row.role == "reward" else str(row.version)
        full = "-" if row.role == "trainer" else f"{len(row.holding)}/{row.slots}"
        phase = "[bold yellow]drained[/] " if row.drained else ""
        phase += escape(row.phase) or "-"
        table.add_row(escape(row.worker), full, version, f"{age(row.silent_s)} ago", phase)
    return table


def culprits(snapshot: Queues) -> dict[str, str]:
    """Rollout workers that hold up the others: worker -> what is wrong with it."""
    from statistics import median

    busy = [row for row in snapshot.workers if row.role == "rollout" and _writes(row)]
    found = {}
    usual = median([row.stats.get(RATE, 0.0) for row in busy]) if len(busy) > 1 else 0.0
    for row in busy:
        rate = row.stats.get(RATE, 0.0)
        if row.silent_s > SILENT_S:
            found[row.worker] = f"not heard for {age(row.silent_s)}"
        elif rate < SLOW * usual:
            found[row.worker] = f"{usual / rate:.0f} times slower than its peers" if rate else "makes no tokens"
    return found


def _writes(row: WorkerRow) -> bool:
    """Has it a sample in a slot? A brief snapshot tells only how many it has."""
    return row.held > row.parked or any(not one.parked for one in row.holding)


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
    """Its id, as `rhymed logs --sample` takes it; of an evaluation with the name of its step."""
    from rhymed.messages import EVAL

    step = _step(sample.step) if sample.step >= EVAL else sample.step
    return f"{step}/{sample.prompt}/{sample.index}"


def _coloured(state: str, text: str) -> str:
    return f"[{COLOURS.get(state, 'white')}]{text}[/]"


def _step(step: int) -> str:
    return step_name(step).removeprefix("step ")


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    return table
