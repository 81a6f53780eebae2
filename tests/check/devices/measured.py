"""What each rank of a trainer really takes on a CPU, in a process of its own.

    python -m tests.check.devices.measured < shape.json

Linux counts the peak, from the moment at which it is reset; large tensors are given back to it at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

MODULE = "tests.check.devices.measured"
ROOT = Path(__file__).parents[3]


def measure(ranks: int, config: dict[str, Any], out: Path, timeout_s: float = 280) -> list[dict[str, int]]:
    """Bytes of each rank, without its libraries: `kept` between steps and the `peak` of a step."""
    given = {"ranks": ranks, "config": config, "out": str(out)}
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((out / f"{ranks}-{rank}.json").read_text()) for rank in range(ranks)]


def _status(name: str) -> int:
    """Bytes, of this process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def _samples(step: int, config: Any) -> list[Any]:
    """As many and as long as they may be."""
    import numpy as np

    from rhymed.core.messages import SampleId, SampleInfo
    from rhymed_store.client import StoredSample

    rollout, draw, found = config.rollout, np.random.default_rng(step), []
    for prompt in range(rollout.prompts_per_step):
        tokens = draw.integers(2, 250, rollout.max_prompt_length).astype(np.uint32)
        for index in range(rollout.group_size):
            length = rollout.max_response_length
            info = SampleInfo(
                id=SampleId(step, f"{prompt:016x}", index),
                prompt_length=len(tokens),
                length=length,
                finish_reason="length",
                versions=[(step, length)],
                reward=float(index % 2),
            )
            response = draw.integers(2, 250, length).astype(np.uint32)
            found.append(StoredSample(info, response, np.full(length, -5.5, np.float32), tokens))
    return found


def _rank(given: dict[str, Any], rank: int, rendezvous: str) -> None:
    from rhymed.core.config import Config
    from rhymed_workers.trainer.learner import TorchLearner
    from tests.workers.trainer.ranks.forked import enter

    config = Config.model_validate(given["config"])
    ranks = enter(given["ranks"], rank, rendezvous)
    base = _status("VmRSS")
    learner = TorchLearner.restore(config, None, ranks)
    learner.train(_samples(0, config), run_steps=2)  # libraries are used, and moments are made
    kept = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    learner.train(_samples(1, config), run_steps=2)
    found = {"kept": kept - base, "peak": _status("VmHWM") - base}
    (Path(given["out"]) / f"{given['ranks']}-{rank}.json").write_text(json.dumps(found))
    ranks.sum([0.0])


def main() -> None:
    given = json.load(sys.stdin)
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import transformers.models.llama.modeling_llama  # noqa: F401

    from tests.workers.trainer.ranks.forked import fork

    torch.set_num_threads(1)
    fork(given["ranks"], partial(_rank, given))


if __name__ == "__main__":
    main()
