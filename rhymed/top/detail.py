"""Above the table, when one worker or one group is looked into: who it is, what it did, how fast. Pure."""

from __future__ import annotations

from rich.text import Text

from rhymed.messages import WorkerRow
from rhymed.run.stragglers import RATE
from rhymed.service.activities import PREFIX, TERMINAL
from rhymed.style import ROLES
from rhymed.text import age, step_name
from rhymed.top.state import Look
from rhymed.top.steps import bar
from rhymed.top.text import clean, count, cut, number, spark
from rhymed.top.views import listing
from rhymed.top.workers import STYLES, find

ACTIVITY_BAR = 32
STATS = 3  # lines
STAT = 40  # cells of one, at least


def worker_lines(look: Look, width: int) -> list[Text]:
    """Of the worker that is looked into."""
    row = find(look.queues.workers, look.worker) if look.queues else None
    if row is None:
        return [Text(cut(f"{look.worker} is not here (any more); Esc goes back", width), style="bold red")]
    lines = [_card(row)]
    shares = look.history.shares(row.worker)
    if shares:
        pieces = [(round(1000 * part), "█", TERMINAL.get(name, "")) for name, part in shares.items()]
        text = bar(pieces, min(ACTIVITY_BAR, width))
        text.append(" ")
        for name, part in sorted(shares.items(), key=lambda item: -item[1]):
            if part < 0.005:
                continue
            text.append(f" {name} ", style=TERMINAL.get(name, ""))
            text.append(f"{100 * part:.0f}%")
        text.append("  of its last minute", style="dim")
        lines.append(text)
    rates = look.history.rates_of(row.worker)
    if rates:
        lines.append(spark("tok/s", rates, width, count(rates[-1])))
    lines += _stats(row, width)
    return lines


def _card(row: WorkerRow) -> Text:
    text = Text(no_wrap=True)
    text.append(f"{ROLES[row.role]} {clean(row.worker)}", style=f"bold {STYLES[row.role]}")
    text.append(f"  {row.role} on {clean(row.host)}, pid {row.pid}")
    if row.version >= 0 and row.role != "reward":
        text.append(f"  v{row.version}")
    if row.role != "trainer":
        text.append(f"  {row.held - row.parked}/{row.slots} slots")
    if row.parked:
        text.append(f"  {row.parked} written ahead")
    if row.accept_length:
        text.append(f"  {row.accept_length:.2f} tokens per forward")
    text.append(f"  heard {age(row.silent_s)} ago  {clean(row.phase)}")
    if row.drained:
        text.append("  DRAINED", style="bold yellow")
    return text


def _stats(row: WorkerRow, width: int) -> list[Text]:
    """What else it tells, in columns."""
    told = [
        f"{clean(name)} {number(value)}"
        for name, value in sorted(row.stats.items())
        if not name.startswith(PREFIX) and name != RATE
    ]
    across = max(1, width // STAT)
    lines = []
    for start in range(0, min(len(told), STATS * across), across):
        cells = [cut(text, STAT - 2).ljust(STAT) for text in told[start : start + across]]
        lines.append(Text("".join(cells), style="dim", no_wrap=True))
    return lines


def group_lines(look: Look, width: int) -> list[Text]:
    """Of the group that is looked into."""
    step, prompt = look.prompt
    text = Text(no_wrap=True)
    text.append(f"{step_name(step)}, prompt {clean(prompt)}", style="bold")
    if look.group is None:
        text.append("  asking the broker", style="dim")
    elif look.group.expected:
        text.append(f"  {count(look.group.expected)} tokens expected of each")
    return [text, *(_afterwards(look, width) if look.past else ())]


def _afterwards(look: Look, width: int) -> list[Text]:
    """Of a group whose step is done: who tells what became of it."""
    step, prompt = look.prompt
    table = listing(look)
    index = table.name(table.rows[table.selected(look)]) if table.rows else "0"
    head = "the step is done; below is the last that was seen of it" if table.rows else "the step is done"
    tell = f"rhymed history show {clean(prompt)}", f"rhymed logs --sample {step}/{clean(prompt)}/{index}"
    commands = [command + look.run for command in tell]
    return [
        Text(cut(f"{head}. What became of it:", width), style="bold yellow", no_wrap=True),
        *(Text(cut(f"  {command}", width), no_wrap=True) for command in commands),
    ]
