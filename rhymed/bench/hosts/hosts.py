"""`rhymed bench hosts`: seconds until the last of several hosts has the weights, against one host.

Tracker, relays, sockets and files are those of a run; hosts are network namespaces, so all share this machine's
processors and memory. `gbit` gives every host a line of that rate: then the lines decide, as between machines, as
long as the processors keep up. A file that does not fit into memory as often as it is needed repeats (`window`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rhymed.bench.hosts.measure import measure
from rhymed.bench.hosts.network import missing_tools
from rhymed.bench.hosts.rounds import Cell, Rounds, header, row, text
from rhymed.errors import ConfigError
from rhymed_workers.weights.slices import slicing

COUNTS, SIZES_GB = (1, 2, 4, 8), (0.3, 3.0, 15.0)
QUICK_COUNTS, QUICK_SIZES_GB = (1, 2), (0.05,)
ROUNDS = 3
VERSIONS = 2  # that each host keeps
SPARE = 2 << 30  # bytes that stay free
PROCESS = 150 << 20  # bytes that a process takes
BUFFERS = 0.02  # of the file: changes that a host passes on
FEWEST = 4  # slices in a window
SHARE = 0.8  # of the memory that is free


def run(
    quick: bool,
    hosts: Sequence[int] | None = None,
    sizes: Sequence[float] | None = None,
    gbit: float = 0.0,
    rounds: int | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """A row for each number of hosts, size, and kind of link. `out`: a file to which every round is added when it is
    measured; rounds that it has are not measured again."""
    if why := missing_tools(bool(gbit)):
        raise ConfigError(why)
    counts = sorted({1, *(hosts or (QUICK_COUNTS if quick else COUNTS))})  # one: what the others are compared with
    known = Rounds(out)
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    print(header(), flush=True)
    for size_gb, locked in product(sizes or (QUICK_SIZES_GB if quick else SIZES_GB), (False, True)):
        cells = [Cell(count, size_gb, locked, gbit) for count in counts]
        left_out += _measure_rounds(cells, known, rounds or (1 if quick else ROUNDS))
        alone = known.of(cells[0])
        rows += (found := [row(cell, known.of(cell), alone) for cell in cells if known.of(cell)])
        print("\n".join(map(text, found)), flush=True)
    return {"gbit": gbit, "rows": rows, "left_out": sorted(set(left_out))}


def _measure_rounds(cells: Sequence[Cell], known: Rounds, rounds: int) -> list[str]:
    """All numbers of hosts by turns, so that what changes on the machine meets all. Returns what was left out."""
    left_out = []
    for number, cell in product(range(rounds), cells):
        if number < len(known.of(cell)):
            continue
        window, why = _window(cell)
        if why:
            print(why, flush=True)
            left_out.append(why)
            continue
        if window:
            print(
                f"{cell.size_gb:g} GB to {cell.hosts} hosts do not fit into memory: every file repeats its first"
                f" {window / 1e6:.0f} MB, the rest takes no memory",
                flush=True,
            )
        known.add(cell, {"window": window, **measure(cell, window)})
    return left_out


def _window(cell: Cell) -> tuple[int, str]:
    """Bytes of each file that take memory, 0: all; and why the cell cannot be measured, or nothing."""
    import psutil

    size = round(cell.size_gb * 1e9)
    files = VERSIONS * (cell.hosts + 1) + 1
    fixed = SPARE + (cell.hosts + 1) * (PROCESS + BUFFERS * size)
    free = psutil.virtual_memory().available
    if fixed + files * size <= free:
        return 0, ""
    window = int((free - fixed) * SHARE / files) if free > fixed else 0
    if window < FEWEST * slicing(size).slice_bytes:
        needed = (fixed + files * FEWEST * slicing(size).slice_bytes / SHARE) / 1e9
        return 0, (
            f"{cell.size_gb:g} GB to {cell.hosts} hosts needs {needed:.1f} GB of memory at least; free:"
            f" {free / 1e9:.1f}: left out"
        )
    return window, ""
