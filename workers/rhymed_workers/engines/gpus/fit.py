"""Why an engine did not fit on its GPUs, and which setting to change: vLLM's own sentences, in our settings' names.

vLLM raises some of them in a child process, so that only its log has the reason.
"""

from __future__ import annotations

import re
from pathlib import Path

LOG_BYTES = 64 << 10  # of the log's end that is read

CURES = (
    (
        r"Free memory on device",
        "another process uses this GPU: lower rollout.gpu_memory, end that process, or set schedule.colocate = true"
        " if it is the trainer",
    ),
    (
        r"No available memory for the cache blocks",
        "the weights alone fill rollout.gpu_memory: raise it, raise rollout.tensor_parallel, set"
        " rollout.quantization, or choose a smaller model",
    ),
    (
        r"To serve at least one request|larger than the available KV cache",
        "one sample at full length does not fit in the KV cache: lower rollout.max_response_length or"
        " max_prompt_length, or raise rollout.gpu_memory or rollout.tensor_parallel",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|HIP out of memory",
        "lower rollout.batch_tokens or rollout.max_concurrency, or leave more room by a lower rollout.gpu_memory",
    ),
    (
        r"must be divisible by tensor parallel size|not divisible by .*tensor",
        "choose a rollout.tensor_parallel that divides the model's attention heads",
    ),
    (
        r"World size \(\d+\) is larger than the number of available GPUs|invalid device ordinal",
        "rollout.tensor_parallel x rollout.pipeline_parallel is more than this machine's GPUs: lower one of them",
    ),
    (
        r"batch_invariant mode is not supported|batch invarian\w+ not supported",
        "this GPU or model has no batch-invariant kernels: set rollout.exact = 'distribution'",
    ),
)


def cure(text: str) -> str:
    """What to change, for the last problem in the text that is known; empty if none is."""
    found = [(match.start(), advice) for pattern, advice in CURES for match in re.finditer(pattern, text)]
    return max(found)[1] if found else ""


def explain(error: BaseException, log: Path | None, begun: int = 0) -> str:
    """The error, and the cure where there is one. `log`: the file that vLLM logs to; `begun`: its size before."""
    advice = cure(str(error)) or cure(_tail(log, begun))
    return f"{error}: {advice}" if advice else str(error)


def size_of(log: Path | None) -> int:
    try:
        return log.stat().st_size if log is not None else 0
    except OSError:
        return 0


def _tail(log: Path | None, begun: int) -> str:
    if log is None:
        return ""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            start = begun if begun <= size else 0  # the file may have been rotated
            stream.seek(max(start, size - LOG_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
