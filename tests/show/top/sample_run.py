"""A made-up run for screens, with the same numbers every time; and the text files that screens are compared with."""

from __future__ import annotations

import math
import os
from pathlib import Path

from msgspec import structs

from rhymed.core.messages import (
    EVAL,
    GpuUsage,
    Holding,
    Queues,
    SampleId,
    StepRow,
    Usage,
    WorkerRow,
)
from rhymed.show.top.state import Shown

SCREENS = Path(__file__).parent / "screens"
UPDATE = "RHYMED_UPDATE_SCREENS"
"""Set this to rewrite the files; check the differences before you keep them."""

NOW = 1000.0


def rollout(number: int, up_s: float = 182.0, **changes: object) -> WorkerRow:
    idle = 0.05 * number
    seconds = {"verify": 0.8 - idle, "decode": 0.15, "update": 0.05, "idle": idle}
    holding = [
        Holding(
            id=SampleId(12, f"{place % 3:016x}", place), tokens=70 * place, seconds=3.0 * place, parked=place == 1
        )
        for place in range(6)
    ]
    row = {
        "worker": f"rollout-{number}", "role": "rollout", "host": f"node-{number // 4}", "pid": 100 + number,
        "slots": 8, "version": 12 - (number == 3), "phase": "decode", "silent_s": 0.1 * number, "holding": holding,
        "held": 6, "parked": 1, "accept_length": 3.0 + number / 10,
        "stats": {"rollout/tokens_per_s": 1000.0 + 10 * number, "rollout/waiting": 1.0}
        | {f"seconds/{name}": up_s * part for name, part in seconds.items()},
        "usage": Usage(
            cpu=1.5 + number / 10, memory=(4 + number) << 28, processes=3,
            gpus=[GpuUsage(
                index=number % 4, kind="NVIDIA H200", utilization=0.9 - number / 20, memory=61 << 30,
                memory_total=140 << 30, celsius=60.0 + number,
            )],
        ),
    }  # fmt: skip
    return WorkerRow(**(row | changes))


def with_environments() -> Queues:
    """Samples with turns, of which some wait for their environment or are with it."""
    stats = {"environment/calls": 1200.0, "environment/call_errors": 3.0, "environment/answers": 800.0}
    environment = WorkerRow(
        worker="environment-0", role="environment", host="node-0", pid=8, slots=16, version=-1, phase="act",
        silent_s=0.1, holding=[], held=6, stats=stats,
    )  # fmt: skip
    usual = snapshot(workers=2)
    step = StepRow(
        step=12, states={"waiting": 4, "running": 6, "turned": 4, "acting": 10, "scored": 8},
        groups_ready=0, groups=4, open_s=2.0,
    )  # fmt: skip
    return structs.replace(
        usual, queues=usual.queues | {"turned": 4, "acting": 10}, oldest_s={"turned": 0.4, "acting": 1.5},
        workers=[environment, *usual.workers], open_steps=[step],
    )  # fmt: skip


def snapshot(workers: int = 9, uptime_s: float = 182.0, **changes: object) -> Queues:
    trainer = WorkerRow(
        worker="trainer", role="trainer", host="node-0", pid=5, slots=1, version=12, phase="train 12/64",
        silent_s=0.3, holding=[],
    )  # fmt: skip
    reward = WorkerRow(
        worker="reward-0", role="reward", host="node-0", pid=9, slots=4, version=-1, phase="score", silent_s=0.1,
        holding=[], held=2, usage=Usage(cpu=0.03, memory=300 << 20),
    )  # fmt: skip
    queues = {
        "run": "demo", "uptime_s": uptime_s, "version": 12, "step": 12, "steps": 96, "finished": False,
        "queues": {
            "waiting": 12, "running": 64, "turned": 0, "acting": 0,
            "generated": 3, "scoring": 8, "scored": 41, "training": 0,
            "trained": 192_000, "dropped": 1,
        },
        "oldest_s": {"waiting": 3.1, "running": 12.4, "generated": 0.2, "scoring": 0.1, "scored": 9.3},
        "workers": [reward, *(rollout(number, uptime_s) for number in range(workers)), trainer],
        "open_steps": [
            StepRow(
                step=12, states={"waiting": 12, "running": 64, "generated": 3, "scoring": 8, "scored": 41},
                groups_ready=5, groups=16, open_s=12.2,
            ),
            StepRow(step=13, states={"waiting": 100, "running": 28}, groups_ready=0, groups=16, open_s=3.0),
            StepRow(step=EVAL + 12, states={"running": 4}, groups_ready=0, groups=2, open_s=1.0),
        ],
        "metrics": {
            "reward/mean": 0.7, "response_length/mean": 412.3, "staleness/mean": 0.25, "staleness/max": 1,
            "rollout/bubble_ratio": 0.12, "rollout/ahead_kept_ratio": 0.93,
        },
        "lag_ms": 0.4,
    }  # fmt: skip
    return Queues(**(queues | changes))


def shown(queues: Queues | None = None, **changes: object) -> Shown:
    """Twelve steps were trained before; twenty snapshots were seen."""
    made = Shown(**changes)
    rows = [
        {"step": step, "reward/mean": 0.3 + 0.03 * step, "response_length/mean": 400 + 30 * math.cos(step)}
        for step in range(12)
    ]
    made.history.add_steps(rows)
    for second in range(20):
        made.history.add(snapshot(uptime_s=162.0 + second))
    made.answered(queues or snapshot(), NOW, None)
    return made


def same(name: str, lines: list[str]) -> None:
    """The screen is the one in the file of this name. Raises `AssertionError` with both."""
    text = "\n".join(line.rstrip() for line in lines).rstrip() + "\n"
    file = SCREENS / f"{name}.txt"
    if os.environ.get(UPDATE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"the screen {name} has changed; {UPDATE}=1 rewrites it"
