"""The engine of rhymed with a model runner of vLLM; prints its outputs as JSON.

    python -m tests.workers.engines.runner MODEL WEIGHTS ADAPTER METHOD RANKS FOLDER

WEIGHTS: those of the next version; ADAPTER: of MODEL; METHOD: `drafts.method`; RANKS: `rollout.tensor_parallel`;
FOLDER: for the run's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed.histospec.versions import RUNNER
from rhymed_workers.engines.base import Output, Task, sampling_for
from rhymed_workers.engines.vllm import VllmEngine

PROMPTS = {"0123456789abcdef": [40, 41, 42, 43, 44, 45, 46, 47], "fedcba9876543210": [90, 7, 90, 8, 90, 9]}
TOKENS = 24


class Engine:
    def __init__(self, model: Path, method: str, ranks: int, folder: Path) -> None:
        rollout = {"max_prompt_length": 64, "max_response_length": TOKENS, "max_concurrency": 8, "kv_cache_gib": 0.05}
        rollout["tensor_parallel"] = ranks
        self.config = Config.model_validate(
            {
                "run": {"folder": str(folder), "name": "run"},
                "model": {"path": str(model), "dtype": "float32"},
                "rollout": rollout,
                "drafts": {"method": method, "budget": "fixed", "max_length": 5},
            }
        )
        (folder / "run").mkdir()
        self.engine = VllmEngine(self.config, model)

    def tasks(self, step: int, carried: Sequence[Output] = (), prefixes: Sequence[Output] = ()) -> list[Task]:
        tasks = []
        for prompt, tokens in PROMPTS.items():
            for index in range(3):
                id = SampleId(step=step, prompt=prompt, index=index)
                sampling = sampling_for(self.config.rollout, self.config.eval, self.config.run.seed, id)
                at = len(tasks)
                before = carried[at].tokens.tolist() if carried else ()
                prefix = prefixes[at].tokens[:7].tolist() if prefixes else None
                tasks.append(Task(id, tokens, sampling, before, prefix))
        return tasks

    async def made(self, tasks: list[Task]) -> tuple[list[Output], dict[str, Any]]:
        outputs = await asyncio.gather(*(self.engine.generate(task) for task in tasks))
        reports = await self.engine.drafting([task.id for task in tasks])
        return list(outputs), {
            "tokens": [one.tokens.tolist() for one in outputs],
            "logprobs": [one.logprobs.tolist() for one in outputs],
            "versions": [[list(row) for row in one.versions] for one in outputs],
            "accepted": [one.drafting and one.drafting.accepted for one in reports],
            "kept": [one.drafting and one.drafting.kept for one in reports],
        }

    async def remember(self, outputs: Sequence[Output]) -> None:
        for at, (prompt, tokens) in enumerate(PROMPTS.items()):
            past: list[Any] = [
                SimpleNamespace(info=SimpleNamespace(id=SimpleNamespace(step=0), reward=1.0), tokens=one.tokens)
                for one in outputs[3 * at : 3 * at + 3]
            ]
            await self.engine.remember(prompt, tokens, past)


async def main(model: Path, weights: Path, adapter: Path, method: str, ranks: int, folder: Path) -> dict[str, Any]:
    one = Engine(model, method, ranks, folder)
    await one.engine.open()
    try:
        report: dict[str, Any] = {"runner": os.environ[RUNNER]}
        await one.engine.load(0, model / "model.safetensors")
        first, report["first"] = await one.made(one.tasks(0))
        await one.remember(first)
        _, report["again"] = await one.made(one.tasks(0))
        await one.engine.load(1, weights)
        updated, report["updated"] = await one.made(one.tasks(1))
        _, report["carried"] = await one.made(one.tasks(0, carried=first))
        _, report["continued"] = await one.made(one.tasks(2, prefixes=updated))
        await one.engine.load(2, adapter)
        _, report["adapted"] = await one.made(one.tasks(0))
        await one.engine.sleep()
        await one.engine.load(3, model / "model.safetensors")
        _, report["slept"] = await one.made(one.tasks(0))
        return report
    finally:
        await one.engine.close()


if __name__ == "__main__":
    model, weights, adapter, method, ranks, folder = sys.argv[1:]
    np.seterr(all="raise", under="ignore")
    reported = asyncio.run(main(Path(model), Path(weights), Path(adapter), method, int(ranks), Path(folder)))
    print("\n" + json.dumps(reported), flush=True)
