"""Which cells fit into memory: with a copy on every host, or with files that repeat (`window`). Pure."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.hosts.rounds import Cell
from rhymed_workers.weights.slices import slicing

SPARE = 2 << 30  # bytes that stay free
PROCESS = 150 << 20  # bytes that a process takes
FEWEST = 4  # slices in a window
LARGEST = 512 << 20  # bytes of a window: far more than caches hold, and quickly made
SHARE = 0.8  # of the memory that is free
CPU_S = 2.0  # assumed, for each GB and host, sender and receiver
KEYS_CPU_S = 1.3  # and with keys
PUBLISH_S = 4.0  # assumed, for each GB that takes memory, its random values included
START_S = 4.0  # of a round's processes


class Fit(NamedTuple):
    window: int = 0  # bytes of each file that take memory; 0: all
    why: str = ""  # it cannot be measured


def fit(cell: Cell, free: float) -> Fit:
    """`free`: bytes of memory."""
    if needed(cell, round(cell.size_gb * 1e9)) <= free:
        return Fit()
    fixed, files = needed(cell, 0), cell.hosts + 2
    window = min(LARGEST, int((free - fixed) * SHARE / files))
    least = FEWEST * slicing(round(cell.size_gb * 1e9)).slice_bytes
    if window >= least:
        return Fit(window)
    least_gb = (fixed + files * least / SHARE) / 1e9
    return Fit(0, f"{_named(cell)} needs {least_gb:.1f} GB of memory at least; free: {free / 1e9:.1f}: left out")


def lacking(cell: Cell, window: int, free: float) -> str:
    """Why a cell that was measured with this window, or is to be, cannot be measured so; empty: it can."""
    wanted = needed(cell, window or round(cell.size_gb * 1e9)) + window  # whose values the publisher keeps
    if wanted <= free:
        return ""
    what = f"files that repeat their first {window / 1e6:.0f} MB" if window else "a copy on every host"
    return f"{_named(cell)}, {what}, needs {wanted / 1e9:.1f} GB of memory; free: {free / 1e9:.1f}"


def needed(cell: Cell, bytes_each: int) -> float:
    """Bytes of memory, if so many of each file take memory."""
    return SPARE + (cell.hosts + 1) * (PROCESS + bytes_each)


def round_s(cell: Cell, found: Fit, cores: int) -> float:
    """About so long takes one round, if nothing else runs."""
    each = CPU_S + KEYS_CPU_S * cell.keys
    line_s = cell.size_gb * 8 * (1 + 0.1 * cell.hosts) / cell.gbit if cell.gbit else 0.0
    made_gb = found.window / 1e9 or cell.size_gb
    copied_s = max(cell.size_gb * cell.hosts * each / min(cores, cell.hosts + 1), line_s)
    return START_S + PUBLISH_S * made_gb + copied_s


def described(cell: Cell, found: Fit) -> str:
    if found.why:
        return found.why
    size = round(cell.size_gb * 1e9)
    if not found.window:
        return f"{_named(cell)}: a copy on every host, {needed(cell, size) / 1e9:.1f} GB of memory"
    return (
        f"{_named(cell)} do not fit into memory ({needed(cell, size) / 1e9:.0f} GB): every file repeats its"
        f" first {found.window / 1e6:.0f} MB, the rest takes no memory"
    )


def _named(cell: Cell) -> str:
    return f"{cell.size_gb:g} GB to {cell.hosts} host{'s' * (cell.hosts != 1)}"
