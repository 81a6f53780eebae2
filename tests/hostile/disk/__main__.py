"""`python -m tests.hostile.disk`: a disk that loses power, and one that fails. Nothing acknowledged may be lost.

Power cuts: a store under load, a process that saves checkpoints and a whole run are recorded, write by write, and cut
at hundreds of random moments; of what was not flushed the disk has any part, in sectors of 512 bytes. See record.py
for what a disk may do, cuts.py and wholerun.py for what is demanded of it.

Storms: writes, flushes, allocations and new names fail now and then, of a store under load and of a whole run. See
storestorms.py and faults.py.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed.core.errors import ConfigError
from tests.hostile.disk import interposed
from tests.hostile.disk.cuts import Result, cut_checkpoints, cut_store
from tests.hostile.disk.faults import storms_of_run
from tests.hostile.disk.storestorms import storms_of_store
from tests.hostile.disk.wholerun import cut_run
from tests.stress import command

CUTS, QUICK_CUTS = 500, 24
CUTS_A_SESSION = 50
STORMS, QUICK_STORMS = 60, 6  # of a store; of a run a third of that
STEPS_A_STORM = 6  # of a run: enough for one storm after the other

Cut = Callable[[Path, Path, int, int], Result]
SESSIONS: tuple[tuple[str, Cut], ...] = (
    ("store", cut_store),
    ("checkpoints", cut_checkpoints),
    ("store", cut_store),
    ("run", cut_run),
)  # in turn


def run(
    quick: bool, cuts: int | None = None, storms: int | None = None, seed: int = 0, parts: str = "cuts,storms"
) -> dict[str, Any]:
    """Prints and returns the numbers. `parts`: which to do."""
    if unknown := set(parts.split(",")) - {"cuts", "storms"}:
        raise ConfigError(f"--parts {', '.join(sorted(unknown))}: there are cuts and storms")
    cuts = (QUICK_CUTS if quick else CUTS) if cuts is None else cuts
    storms = (QUICK_STORMS if quick else STORMS) if storms is None else storms
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rhymed-disk-") as made:
        library = interposed.build(Path(made))
        if "cuts" in parts:
            found |= _cuts(Path(made), library, cuts, seed)
        if "storms" in parts:
            found |= _storms(Path(made), library, storms, seed)
    lost = [line for part in found.values() for line in part.pop("lost")]
    for line in lost[:20]:
        print(line)
    return found | {"lost": lost, "good": not lost}


def _cuts(made: Path, library: Path, cuts: int, seed: int) -> dict[str, Any]:
    began, left, number = time.perf_counter(), cuts, 0
    size = max(1, min(CUTS_A_SESSION, cuts // len(SESSIONS)))
    total = {name: Result() for name, _ in SESSIONS}
    while left > 0:
        name, cut = SESSIONS[number % len(SESSIONS)]
        folder = made / f"cuts-{number}"
        folder.mkdir()
        total[name] += cut(folder, library, min(size, left), seed + number)
        print(f"{time.perf_counter() - began:6.0f} s  power cuts, {name}: {total[name]}", flush=True)
        left, number = left - size, number + 1
    return {f"power cuts, {name}": result.numbers() | {"lost": result.lost} for name, result in total.items()}


def _storms(made: Path, library: Path, storms: int, seed: int) -> dict[str, Any]:
    for name in ("storms", "storms-of-run"):
        (made / name).mkdir()
    tally, lost, faults = storms_of_store(made / "storms", library, storms, seed)
    held = {"storms": storms, "acknowledged": tally.acknowledged, "compared": tally.compared}
    print(f"storms, store: {held}, {len(lost)} lost\n{_lines(faults)}", flush=True)
    count = max(1, storms // 3)
    whole = storms_of_run(made / "storms-of-run", library, count, STEPS_A_STORM * count, seed)
    print(f"storms, run: {whole.count} storms in {whole.seconds:.0f} s\n{_lines(whole.faults)}")
    for sentence in whole.ends:
        print(f"  it ended: {sentence}")
    return {
        "storms, store": held | {"faults": faults, "lost": lost},
        "storms, run": {"storms": whole.count, "faults": whole.faults, "ends": whole.ends, "lost": whole.wrong},
    }


def _lines(faults: dict[str, int]) -> str:
    return "\n".join(f"  {count:6,}  {kind}" for kind, count in faults.items())


def main() -> int:
    parser = command.parser("tests.hostile.disk", "cut the power of recorded sessions, and run on a disk that fails")
    parser.add_argument("--cuts", type=int, metavar="N", help=f"how many (default: {CUTS})")
    parser.add_argument("--storms", type=int, metavar="N", help=f"how many, of a store (default: {STORMS})")
    parser.add_argument("--seed", type=int, metavar="N", help="of the data, the moments and what the disk does")
    parser.add_argument("--parts", metavar="A,B", help="cuts, storms; default: both")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
