"""`python -m tests.stress.agents`: a run of samples in turns under fire, and what its tools or programs wrote down.

A seeded series of faults hits every kind of process, those with tools included, while tools write each call to a file
before they answer. It passes when no call of a tool that is not idempotent was made twice, every result that a sample
has is the one that was recorded, every sample was trained once or dropped with a reason, and the store is sound. With
`--programs` samples are programs, and a program that is started again must be answered as the one before it was.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rhymed.core.errors import ConfigError
from rhymed.records.history.compare.audit import Audit, audit
from rhymed.records.history.folder import open_folder
from rhymed.start.cli.options import add_override
from rhymed_store.verify import verify
from tests.stress import calls, command, programs
from tests.stress.faults import AGENTS, KINDS, STUCK_S, FaultInjector, FaultSchedule, Outcome
from tests.stress.recovery import Throughput
from tests.stress.run import LiveRun, Shape

ENDLESS = 1_000_000  # steps
OFTEN = ("environment", "tool", "rollout") * 2  # besides once each: between these the run makes progress
MORE = 40  # faults of environments at most, until one hit what it should
CALM_STEPS = 7  # after the last fault: checkpoints cover what was under fire


class Siege(FaultInjector):
    """Ends the run itself, when it has trained some steps without faults. Ctrl-C ends the faults; once more, all."""

    measures = False  # what it lost of turns: the engine's clock does not tell
    hit: Callable[[], bool] = staticmethod(lambda: True)  # whether the faults hit what they should
    progress: Callable[[], int] = staticmethod(lambda: 0)  # grows while the run does what the faults should hit
    _stopped_by_user = False

    async def run(self) -> Outcome:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._enough)
        return await super().run()

    def _enough(self) -> None:
        self._schedule.count, self._stopped_by_user = 0, True
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def _end(self) -> None:
        for _ in range(MORE):
            if self._stopped_by_user or self.hit() or not await self._is_running():
                break
            before, until = self.progress(), time.monotonic() + STUCK_S
            while self.progress() == before and time.monotonic() < until:
                await asyncio.sleep(0.1)
            await asyncio.sleep(self._schedule.draw.uniform(0.0, 0.3))
            await self._inject("environment")
        goal, seen, since = self._step() + CALM_STEPS, -1, time.monotonic()
        while await self._is_running() and (step := self._step()) < goal:
            if step != seen:
                seen, since = step, time.monotonic()
            if time.monotonic() - since > STUCK_S:
                self._outcome.gave_up.append(f"no step for {STUCK_S:.0f} s, and nothing was killed")
                break
            await asyncio.sleep(0.2)
        await asyncio.to_thread(self._run.interrupt)

    def _step(self) -> int:
        return self._watch.queues.step if self._watch.queues is not None else 0


def run(
    quick: bool,
    kills: int | None = None,
    every: float | None = None,
    seed: int = 0,
    kinds: Sequence[str] = (*AGENTS, *OFTEN),
    out: Path | None = None,
    override: Sequence[str] = (),
    of_programs: bool = False,
) -> dict[str, Any]:
    """`kills`: faults. `every`: mean seconds between two. `out`: a folder that keeps the run. `of_programs`: samples
    are programs instead of turns with tools."""
    if unknown := set(kinds) - set(KINDS):
        raise ConfigError(f"--kinds {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-agents-"))
    settings = programs.with_programs(folder) if of_programs else calls.with_tools(folder)
    shape = Shape(ENDLESS, 3, 2, prompts=120, settings=settings, override=override)
    faults = FaultSchedule(seed, kills or (36 if quick else 1000), every or 2.5, kinds)
    with LiveRun(shape.write(folder, "agents")) as live:
        siege = Siege(live, faults, Throughput([]))
        if of_programs:
            siege.hit = lambda: programs.again(programs.read(folder / "program.log")) > 0
            siege.progress = lambda: len(programs.read(folder / "program.log"))
        outcome = asyncio.run(siege.run())
    with live.browse() as browse:
        made = programs.judge(folder, browse) if of_programs else calls.judge(folder, browse)
    result = _judge(live, outcome, made)
    if out is None and result["good"]:
        shutil.rmtree(folder)
    return result


def _judge(live: LiveRun, outcome: Outcome, made: calls.Made | programs.Told) -> dict[str, Any]:
    with open_folder(live.where.folder) as opened:
        audited = audit(opened)
    unsound = verify(live.where.database).findings
    wrong = [*made.wrong, *audited.wrong, *(f"store: {fault}" for fault in unsound)]
    wrong += [f"the supervisor gave up: {said}" for said in outcome.gave_up]
    wrong += [f"{outcome.forgotten} acknowledged samples were lost"] if outcome.forgotten else []
    wrong += [] if audited.trained else ["nothing was trained"]
    counts = Counter(fault.kind for fault in outcome.faults)
    result = {
        "kills": len(outcome.faults),
        "seconds": outcome.seconds,
        "steps": audited.steps,
        "trained": audited.trained,
        "dropped": audited.dropped,
        "reasons": audited.reasons,
        "acknowledged_lost": outcome.forgotten,
        "kinds": dict(sorted(counts.items())),
        **{name: value for name, value in made.json().items() if name != "wrong"},
        "wrong": wrong,
        "good": not wrong,
        "folder": str(live.where.folder),
    }
    _print(result, audited, made.lines())
    return result


def _print(result: dict[str, Any], audited: Audit, lines: Sequence[str]) -> None:
    print(f"\n{result['kills']} kills in {result['seconds']:.0f} s:")
    for kind, count in result["kinds"].items():
        print(f"  {kind:18} {count:5}")
    print(
        f"{audited.steps} steps, {audited.trained:,} samples trained, {audited.dropped} dropped,"
        f" {result['acknowledged_lost']} acknowledged ones lost"
    )
    print("\n".join(lines))
    for reason, count in audited.reasons.items():
        print(f"  dropped: {count} x {reason}")
    for fault in result["wrong"][:20]:
        print(f"wrong: {fault}")
    print(
        "passed: nothing was done twice that must not be, and every sample is accounted for"
        if result["good"]
        else f"failed; see {result['folder']}"
    )


def main() -> int:
    parser = command.parser("tests.stress.agents", "kill processes of a run with tools, and compare what they did")
    parser.add_argument("--kills", type=int, metavar="N", help="faults (default: 1000)")
    parser.add_argument("--every", type=float, metavar="S", help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, metavar="N", help="of the series of faults")
    parser.add_argument(
        "--kinds", type=lambda text: text.split(","), metavar="A,B", help=f"only these, of {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--programs",
        action="store_true",
        dest="of_programs",
        help="samples are programs, instead of turns with tools",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the run here")
    add_override(parser)
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
