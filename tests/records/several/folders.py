"""Run folders as runs leave them, without a process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rhymed.core.config.load import load_config
from rhymed.core.run.timeline import Event, Writer

NOW = 1_700_000_000.0


def make(place: Path, name: str, rewards: tuple[float, ...] = (), *, start: float = NOW, **settings: Any) -> Path:
    """A step of ten seconds per reward, an evaluation at the end; no end is recorded. `settings`: trainer__lr."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    config = load_config(None, (), {}, {"run.name": name, "run.folder": str(place), **given})
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.model_dump_json())
    os.utime(folder / "config.json", (start, start))
    events = [Event(t=start, event="begun", step=0)]
    with (folder / "metrics.jsonl").open("w") as file:
        for step, reward in enumerate(rewards):
            at = start + 10.0 * (step + 1)
            events.append(Event(t=at, event="trained", step=step))
            file.write(json.dumps(metrics(step, at, reward)) + "\n")
        if rewards:
            held = {"val/held/reward/mean": rewards[-1] / 2, "val/held/prompts": 8.0}
            file.write(json.dumps({"step": len(rewards), "time": at, **held}) + "\n")
    writer = Writer(folder)
    writer.write(events)
    writer.close()
    return folder


def metrics(step: int, at: float, reward: float) -> dict[str, Any]:
    return {
        "step": step, "time": at, "reward/mean": reward, "response_length/mean": 20.0 + step,
        "rollout/tokens": 100.0, "rollout/tokens_per_s": 50.0, "timing_s/step": 10.0, "timing_s/train": 4.0,
        "timing_s/rollout": 5.0, "timing_s/reward": 1.0,
    }  # fmt: skip


def end(folder: Path, text: str, at: float) -> None:
    """The broker's record of the end."""
    writer = Writer(folder)
    writer.write([Event(t=at, event="finished", text=text)])
    writer.close()
