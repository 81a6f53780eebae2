"""The environment of a process whose vLLM takes its model runner V2 on a CPU."""

from __future__ import annotations

import os
from pathlib import Path

from rhymed.histospec.versions import RUNNER

HERE = Path(__file__).parent


def environment(*, runner: str = "1", asynchronous: bool = False) -> dict[str, str]:
    """`runner`: 1 for V2, by Triton's interpreter; 0 for V1, at the machine's own speed. What is on `PYTHONPATH`
    stays before the installed packages: so an overlay of another release (scripts/vllm_overlay.py) is run."""
    more = {RUNNER: runner, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "passive"}
    more |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if runner == "1":
        path = [str(HERE), os.environ.get("PYTHONPATH", "")]
        more |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), "TRITON_INTERPRET": "1"}
        more |= {"BENCH_V2_ASYNC": str(int(asynchronous))}
    return os.environ | more
