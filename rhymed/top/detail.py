"""Above the table in the views of one worker or one group: what it is, what it did, how fast. Pure."""

from __future__ import annotations

from rich.text import Text

from rhymed.messages import Usage, WorkerRow
from rhymed.printable import line as line_of
from rhymed.run.stragglers import RATE
from rhymed.service.activities import PREFIX, TERMINAL
from rhymed.style import ROLES, bar
from rhymed.text import age, counted, size_of, step_name
from rhymed.top.state import UiState, utilization
from rhymed.top.text import UNKNOWN, count, cut, number, share, spark
from rhymed.top.views import listing
from rhymed.top.workers import STYLES, find

ACTIVITY_BAR = 32
STATS_LINES = 3
STAT_CELLS = 40  # at least


def worker_lines(ui: UiState, width: int) -> list[Text]:
    row = find(ui.queues.workers, ui.worker) if ui.queues else None
    if row is None:
        return [Text(cut(f"{ui.worker} is not connected; Esc goes back", width), style="bold red")]
    lines = [_card(row)]
    if shares := ui.history.shares(row.worker):
        pieces = [(round(1000 * part), "█", TERMINAL.get(name, "")) for name, part in shares.items()]
        text = bar(pieces, min(ACTIVITY_BAR, width))
        text.append(" ")
        for name, part in sorted(shares.items(), key=lambda item: -item[1]):
            if part < 0.005:
                continue
            text.append(f" {name} ", style=TERMINAL.get(name, ""))
            text.append(f"{100 * part:.0f}%")
        text.append("  in the last minute", style="dim")
        lines.append(text)
    if rates := ui.history.rates_of(row.worker):
        lines.append(spark("tok/s", rates, width, count(rates[-1])))
    if row.usage:
        lines.append(_usage(row.usage, width))
        if busy := ui.history.busy_of(row.worker):
            gpus = utilization(row.usage) is not None
            lines.append(spark("GPU" if gpus else "CPU", busy, width, share(busy[-1]) if gpus else f"{busy[-1]:.1f}"))
    lines += _stats(row, width)
    return lines


def _card(row: WorkerRow) -> Text:
    text = Text(no_wrap=True)
    text.append(f"{ROLES[row.role]} {line_of(row.worker)}", style=f"bold {STYLES[row.role]}")
    text.append(f"  {row.role} on {line_of(row.host)}, pid {row.pid}")
    if row.version >= 0 and row.role != "reward":
        text.append(f"  v{row.version}")
    if row.role != "trainer":
        text.append(f"  {row.held - row.parked}/{row.slots} slots")
    if row.parked:
        text.append(f"  {row.parked} ahead")
    if row.accept_length:
        text.append(f"  {row.accept_length:.2f} tokens per forward")
    text.append(f"  heard {age(row.silent_s)} ago  {line_of(row.phase)}")
    if row.drained:
        text.append("  DRAINED", style="bold yellow")
    return text


def _usage(usage: Usage, width: int) -> Text:
    """`1.5 processors, 2.1 GiB, GPU 3 H200: 91%, 61.2 GiB of 139.8 GiB, 64 °C`"""
    parts = [counted(round(usage.cpu, 1), "processor"), size_of(usage.memory)]
    if usage.processes > 1:
        parts.append(counted(usage.processes, "process", "processes"))
    text = ", ".join(parts)
    for gpu in usage.gpus:
        numbers = [
            "" if gpu.utilization is None else share(gpu.utilization),
            "" if gpu.memory is None else f"{size_of(gpu.memory)} of {size_of(gpu.memory_total or 0)}",
            "" if gpu.celsius is None else f"{gpu.celsius:.0f} °C",
        ]
        text += f"; GPU {gpu.index} {line_of(gpu.kind)}: {', '.join(filter(None, numbers)) or UNKNOWN}"
    if usage.failures:
        text += f"; {counted(usage.failures, 'call')} of NVML failed"
    return Text(cut(text, width), no_wrap=True)


def _stats(row: WorkerRow, width: int) -> list[Text]:
    stats = [
        f"{line_of(name)} {number(value)}"
        for name, value in sorted(row.stats.items())
        if not name.startswith(PREFIX) and name != RATE
    ]
    across = max(1, width // STAT_CELLS)
    lines = []
    for start in range(0, min(len(stats), STATS_LINES * across), across):
        cells = [cut(text, STAT_CELLS - 2).ljust(STAT_CELLS) for text in stats[start : start + across]]
        lines.append(Text("".join(cells), style="dim", no_wrap=True))
    return lines


def group_lines(ui: UiState, width: int) -> list[Text]:
    step, prompt = ui.prompt
    text = Text(no_wrap=True)
    text.append(f"{step_name(step)}, prompt {line_of(prompt)}", style="bold")
    if ui.group is None:
        text.append("  asking the broker", style="dim")
    elif ui.group.expected:
        text.append(f"  {count(ui.group.expected)} tokens expected per sample")
    return [text, *(_afterwards(ui, width) if ui.step_done else ())]


def _afterwards(ui: UiState, width: int) -> list[Text]:
    """For a group whose step is done: the commands that show what followed."""
    step, prompt = ui.prompt
    table = listing(ui)
    index = table.name(table.rows[table.selected(ui)]) if table.rows else "0"
    head = "the step is done; below is its last known state" if table.rows else "the step is done"
    arguments = f"rhymed history show {line_of(prompt)}", f"rhymed logs --sample {step}/{line_of(prompt)}/{index}"
    commands = [command + ui.run for command in arguments]
    return [
        Text(cut(f"{head}. For what followed:", width), style="bold yellow", no_wrap=True),
        *(Text(cut(f"  {command}", width), no_wrap=True) for command in commands),
    ]
