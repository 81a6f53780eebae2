"""An environment whose tool takes 50 ms to 5 s, and the run that uses it. Its answers say when it was called.

Tokens of the trace engine are bytes of a text, so the times are read from the stored samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rhymed.core.config import Config

FASTEST_S, SLOWEST_S = 0.05, 5.0
SOURCE = '''
import asyncio, hashlib, math, time

LOW, HIGH = math.log({fastest}), math.log({slowest})


class Tool:
    """Each answer takes a log-uniform time, which depends on what the policy wrote."""

    def __init__(self, env_config=None, extras=None):
        self.left = {turns}

    async def init(self, prompt):
        return [{{"role": "user", "content": f"{{time.monotonic():.6f}}"}}], {{}}

    async def step(self, action):
        begun, self.left = time.monotonic(), self.left - 1
        share = int.from_bytes(hashlib.blake2b(action.encode(), digest_size=4).digest(), "big") / 2**32
        await asyncio.sleep(math.exp(LOW + share * (HIGH - LOW)))
        text = f"{{begun:.6f}} {{time.monotonic():.6f}}"
        done = not self.left
        return {{"observations": [{{"role": "user", "content": text}}], "done": done, "reward": float(done)}}

    async def close(self):
        pass
'''


def config(folder: Path, sessions: int, slots: int, steps: int, turns: int, **trace: float) -> Config:
    """`sessions`: of a step. `slots`: of each of two rollout workers. `turns`: of a sample."""
    (folder / "task.py").write_text(SOURCE.format(fastest=FASTEST_S, slowest=SLOWEST_S, turns=turns))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(sessions // 4)))
    group = 8
    given: dict[str, Any] = {
        "run": {"name": "agents", "folder": str(folder), "report": False},
        "data": {"source": "jsonl", "path": str(folder / "rows.jsonl")},
        "environment": {
            "factory": f"{folder / 'task.py'}:Tool",
            "max_turns": turns,
            "processes": 1,
            "timeout_s": 60.0,
        },
        "rollout": {
            "engine": "trace",
            "prompts_per_step": sessions // group,
            "group_size": group,
            "max_response_length": 8192,
            "max_concurrency": slots,
        },
        "trace": {"prompt_sigma": 0.3, "sample_sigma": 0.3, **trace},
        "reward": {"scorer": "environment"},
        "trainer": {"engine": "trace", "steps": steps, "epochs": 1_000_000},
        "schedule": {"max_staleness": 0},
        "store": {"map_gib": 2.0},
        "net": {"http": ""},
    }
    return Config.model_validate(given)
