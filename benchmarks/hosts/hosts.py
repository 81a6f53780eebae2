"""`python -m benchmarks hosts`: seconds until the last of several hosts has the weights, against one host.

Tracker, relays, sockets and files are those of a run; hosts are network namespaces, so all share this machine's
processors and memory. `gbit` gives every host a line of that rate: then the lines decide, as between machines, as
long as the processors keep up. A file that does not fit into memory as often as it is needed repeats (`window`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.hosts.fit import Fit, described, fit, lacking, round_s
from benchmarks.hosts.measure import measure
from benchmarks.hosts.network import missing_tools
from benchmarks.hosts.rounds import Cell, Rounds, header, row, text
from rhymed.core.errors import ConfigError

COUNTS, SIZES_GB = (1, 2, 4, 8), (0.3, 3.0, 15.0)
QUICK_COUNTS, QUICK_SIZES_GB = (1, 2), (0.05,)
ROUNDS = 3


def run(
    quick: bool,
    hosts: Sequence[int] | None = None,
    sizes: Sequence[float] | None = None,
    gbit: float = 0.0,
    rounds: int | None = None,
    dry: bool = False,
    out: Path | None = None,
) -> dict[str, Any]:
    """A row for each number of hosts, size, and kind of link. `out`: a file to which every round is added when it is
    measured; rounds that it has are not measured again. `dry`: only say which cells fit, and how."""
    if why := missing_tools(bool(gbit)):
        raise ConfigError(why)
    counts = sorted({1, *(hosts or (QUICK_COUNTS if quick else COUNTS))})  # one: what the others are compared with
    sizes = sizes or (QUICK_SIZES_GB if quick else SIZES_GB)
    wanted = rounds or (1 if quick else ROUNDS)
    known = Rounds(out)
    cells = [Cell(count, size_gb, keys, gbit) for size_gb, keys in product(sizes, (False, True)) for count in counts]
    fits = _fits(cells, known, wanted)
    result: dict[str, Any] = {"gbit": gbit, "left_out": [found.why for found in fits.values() if found.why]}
    result["left_out"] = list(dict.fromkeys(result["left_out"]))
    if dry:
        return result
    print(header(), flush=True)
    rows: list[dict[str, Any]] = []
    for size_gb, keys in product(sizes, (False, True)):
        these = [cell for cell in cells if (cell.size_gb, cell.keys) == (size_gb, keys)]
        result["left_out"] += _measure_rounds(these, fits, known, wanted)
        alone = known.of(these[0])
        rows += (found := [row(cell, known.of(cell), alone) for cell in these if known.of(cell)])
        print("\n".join(map(text, found)), flush=True)
    return {**result, "rows": rows}


def _fits(cells: Sequence[Cell], known: Rounds, rounds: int) -> dict[Cell, Fit]:
    """Of every cell that is to be measured, printed. Raises `ConfigError` if earlier rounds are of other files."""
    fits: dict[Cell, Fit] = {}
    total_s, free, cores = 0.0, _free(), len(os.sched_getaffinity(0))
    for cell in cells:
        earlier = known.window(cell)
        if (missing := rounds - len(known.of(cell))) <= 0:
            continue
        if earlier is not None and (why := lacking(cell, earlier, free)):
            raise ConfigError(f"--out has rounds of {why}: free more, or choose another file")
        found = fits[cell] = fit(cell, free) if earlier is None else Fit(earlier)
        total_s += 0.0 if found.why else missing * round_s(cell, found, cores)
    lines = dict.fromkeys(described(cell, found) for cell, found in fits.items())
    print("\n".join(lines), flush=True)
    print(f"about {max(1, round(total_s / 60))} min, if nothing else runs here", flush=True)
    return fits


def _measure_rounds(cells: Sequence[Cell], fits: Mapping[Cell, Fit], known: Rounds, rounds: int) -> list[str]:
    """All numbers of hosts by turns, so that what changes on the machine meets all. Returns what was left out because
    there is less memory by now."""
    left_out: dict[str, None] = {}
    for number, cell in product(range(rounds), cells):
        found = fits.get(cell)
        if found is None or found.why or number < len(known.of(cell)):
            continue
        if why := lacking(cell, found.window, _free()):
            print(f"{why}: left out", flush=True)
            left_out[f"{why}: left out"] = None
            continue
        known.add(cell, {"window": found.window, **measure(cell, found.window)})
    return list(left_out)


def _free() -> int:
    """Bytes of memory."""
    import psutil

    return int(psutil.virtual_memory().available)
