"""A snapshot of the broker with all its rows, as lines that need no live terminal: `rhymed queues`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from rhymed.core.messages import Holding, Queues, StepRow
from rhymed.core.printable import line
from rhymed.core.run.stragglers import shown_states, starting, stragglers
from rhymed.core.run.timeline import Times
from rhymed.core.style import COLOURS, GLYPHS
from rhymed.core.text import age, readable
from rhymed.show.top.screen import ahead, step_line, title
from rhymed.show.top.state import Connection, Shown
from rhymed.show.top.table import UNKNOWN, Column, draw
from rhymed.show.top.workers import WORKER_COLUMNS, longest_held, worker_entries

SHOWN = 4  # samples listed per worker, the longest held first

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


def render(queues: Queues, width: int, times: Times | None = None) -> Text:
    """The parts of `rhymed top` one below the other, with all rows. `width`: into which columns must fit; names,
    counts and reasons are never cut. `times`: None: the run's folder is not here."""
    shown = Shown(queues, connection=Connection("finished" if queues.finished else "live"), times=times)
    lines = [title(shown, width, 0.0), Text(), *draw(shown_states(queues), _queue_columns(queues), width), Text()]
    for row in sorted(queues.open_steps, key=lambda row: row.step):
        open_step = step_line(row, queues.version, width)
        more = [Text(f"{'':11}{_states(row)}", style="dim")] if open_step.plain.endswith("…") else []
        lines += [open_step, *more]
    lines += [ahead(queues, width), Text(), *_workers(queues, width)]
    lines += [Text(f"{line(worker)}: {what}", style="red") for worker, what in stragglers(queues).items()]
    lines += [Text(starting(queues), style="dim")] if starting(queues) else []
    lines += [Text(f"waits: {line(trouble)}", style="bold red") for trouble in queues.troubles]
    return Text("\n").join(lines)


def _queue_columns(queues: Queues) -> Sequence[Column[str]]:
    def oldest(state: str) -> str:
        return age(queues.oldest_s[state]) if state in queues.oldest_s else UNKNOWN

    return (
        Column("queue", 10, lambda state: (state, COLOURS.get(state, ""))),
        Column("samples", 9, lambda state: (f"{queues.queues[state]:,}", ""), right=True),
        Column("oldest", 7, lambda state: (oldest(state), ""), right=True),
        Column("", max(map(len, PURPOSE.values())), lambda state: (PURPOSE.get(state, ""), "dim")),
    )


def _states(row: StepRow) -> str:
    return "  ".join(f"{row.states[state]} {state}" for state in GLYPHS if row.states.get(state))


def _workers(queues: Queues, width: int) -> Iterator[Text]:
    """All workers, then the samples that each has held longest, with ids as `rhymed logs --sample` takes them."""
    entries = worker_entries(queues)
    name, *others = WORKER_COLUMNS
    names = [cell_len(line(entry.row.worker)) + 2 for entry in entries]
    yield from draw(entries, (replace(name, width=max([name.width, *names])), *others), width)
    held = [(entry.row.worker, one) for entry in entries for one in longest_held(entry.row)[:SHOWN]]
    if held:
        ids = [readable(str(one.id)) for _, one in held]
        columns: tuple[Column[tuple[str, Holding]], ...] = (
            Column(
                "longest held", max(map(cell_len, ["longest held", *ids])), lambda row: (readable(str(row[1].id)), "")
            ),
            Column("tokens", 8, lambda row: (f"{row[1].tokens:,}", ""), right=True),
            Column("for", 7, lambda row: (age(row[1].seconds), ""), right=True),
            Column("by", max(names) - 2, lambda row: (line(row[0]), "")),
        )
        yield Text()
        yield from draw(held, columns, width)
