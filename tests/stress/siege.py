"""`python -m tests.stress.siege`: 15 minutes of faults on a run with tools, overlap and dynamic sampling.

A seeded series of SIGKILL and SIGSTOP hits every role, the processes of tools and everything at once. Then the run
trains some more steps without faults and ends. A calm run of as many steps follows. It passes when both trained the
same samples in the same steps, each once, and have the same weights, bit for bit.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rhymed.core.errors import ConfigError
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from rhymed.start.cli.options import add_override
from tests.stress import chaos, command
from tests.stress.agents import ENDLESS, Siege
from tests.stress.calls import with_tools
from tests.stress.faults import AGENTS, FaultSchedule, Outcome
from tests.stress.recovery import Throughput
from tests.stress.run import LiveRun, Shape

MINUTES, QUICK_MINUTES = 15.0, 3.0
EVERY_S = 5.0
MORE_STEPS = 10  # after its last checkpoint: beyond every step that had been opened
KINDS = tuple(kind for kind in AGENTS if kind != "term")
SETTINGS = {
    "rollout": {"max_response_length": 300, "save_every_s": 0.5},
    "trainer": {"overlap": True, "dynamic_sampling": {"enabled": True, "tolerance": 0.6}},  # about half of the groups
}


class Timed(Siege):
    """Faults for so many seconds."""

    seconds: float

    async def run(self) -> Outcome:
        asyncio.get_running_loop().call_later(self.seconds, self._enough)
        return await super().run()


def run(
    quick: bool,
    minutes: float | None = None,
    every: float = EVERY_S,
    seed: int = 0,
    out: Path | None = None,
    override: Sequence[str] = (),
) -> dict[str, Any]:
    """`minutes`: of faults. `every`: mean seconds between two. `out`: a folder that keeps the runs."""
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-siege-"))
    tools = with_tools(folder, workers=2, names=["look"])  # what others answer differently each time differs anyway
    shape = Shape(ENDLESS, 2, 2, prompts=120, settings=_merged(tools, SETTINGS), override=override)
    print(f"in {folder}", flush=True)
    with LiveRun(shape.write(folder, "siege")) as live:
        siege = Timed(live, FaultSchedule(seed, ENDLESS, every, KINDS), Throughput([]))
        siege.seconds = 60.0 * (minutes or (QUICK_MINUTES if quick else MINUTES))
        outcome = asyncio.run(siege.run())
        with open_folder(live.where.folder) as opened:
            steps = audit(opened).steps + MORE_STEPS
        live.start(resume=True, options=["-o", f"trainer.steps={steps}"])
        if live.wait() != 0:
            raise ConfigError(f"the run cannot be ended:\n{live.tail()}")
    print(f"{len(outcome.faults)} faults in {steps} steps; now the calm run", flush=True)
    with LiveRun(replace(shape, steps=steps).write(folder, "calm")) as calm:
        throughput, calm_s = asyncio.run(chaos.calm_run(calm))
    result = chaos.judge(calm, live, throughput, calm_s, outcome)
    if out is None and result["good"]:
        shutil.rmtree(folder)
    return result


def _merged(*settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in settings:
        for section, values in one.items():
            found[section] = {**found.get(section, {}), **values}
    return found


def main() -> int:
    parser = command.parser("tests.stress.siege", "kill and stop processes of a run for 15 minutes, and compare")
    parser.add_argument("--minutes", type=float, metavar="M", help="of faults")
    parser.add_argument("--every", type=float, metavar="S", help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, metavar="N", help="of the series of faults")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs here")
    add_override(parser)
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
