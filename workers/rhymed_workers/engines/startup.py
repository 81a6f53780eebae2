"""Why vLLM does not start on this machine, in one sentence: from its log afterwards, and by a try in advance.

vLLM wraps an error in general ones, in several processes, and only the log has the reason. The cause is the first
error of the last chain of tracebacks that is not such a general error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from rhymed.histospec.versions import installed

LOG_BYTES = 512 << 10  # of the log's end that is read
NUMA = "libnuma.so.1"
LIBRARY = re.compile(r"(libnuma\.so[.\d]*): cannot open shared object file")
BEGIN = "Traceback (most recent call last):"
PRINTED = r"(?:\(\S+ pid=\d+\) )?(?:ERROR \S+ \S+ \[[^\]]*\] )?"  # before a line that vLLM prints
ERROR = re.compile(rf"^{PRINTED}((?:\w+\.)*[A-Z]\w*(?:: .*)?)$", re.MULTILINE)
LINKS = ("direct cause of the following exception", "During handling of the above exception")
NESTED = "Error raised in subprocess"
ENDED = "its process ended with status"
FAILED = "CalledProcessError"
GENERAL = (
    FAILED,
    NESTED,
    ENDED,
    "Engine core initialization failed",
    "failed to be inspected",
    "EngineDeadError",
    "For further information visit",
)
"""Texts of errors that only refer to another error."""
TRY_S = 300.0  # it usually takes ten seconds or twenty
TRY = """
import sys
from vllm.model_executor.models.registry import ModelRegistry
if model := ModelRegistry.models.get(sys.argv[1]):
    model.inspect_model_cls()
"""

CURES = (
    (r"Command 'lscpu", "vLLM asks lscpu for the processors, and it reads /sys: mount it, mount -t sysfs sys /sys"),
    (r"libnuma\.so", "install it, e.g. apt install libnuma1 (Debian, Ubuntu) or dnf install numactl-libs (Fedora)"),
    (
        r"operator (?:torchvision|torchaudio|torchcodec)::"
        r"|(?:import of|import name '\w+' from|partially initialized module) '?(?:torchvision|torchaudio)"
        r"|(?:_?torchaudio|torchvision|torchcodec)\S*\.so: undefined symbol"
        r"|Could not load (?:this library: \S*)?(?:lib)?(?:torchvision|torchaudio|torchcodec)",
        "pip uninstall torchvision torchaudio torchcodec: they were built for another torch, and rhymed needs none of"
        " them",
    ),
    (
        r"No module named '(?:torchvision|torchaudio|torchcodec)'",
        "vLLM imports it for this model, also for text alone: install the build of that package for this torch (with"
        " the same suffix, such as +cpu); rhymed itself needs none of them",
    ),
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
        r"Found no NVIDIA driver|driver on your system is too old|driver version is insufficient"
        r"|No CUDA GPUs are available|no CUDA-capable device|CUDA driver initialization failed|CUDA unknown error",
        "torch cannot use a GPU of this machine: install NVIDIA's driver, or a newer one; nvidia-smi must list the"
        " GPU, and python -c 'import torch; torch.cuda.init()' must print nothing",
    ),
    (
        r"batch_invariant mode is not supported|batch invarian\w+ not supported",
        "this GPU or model has no batch-invariant kernels: set rollout.exact = 'distribution'",
    ),
)
"""Texts of vLLM's messages, and what to change, in names of rhymed's settings."""


def explain(error: BaseException, log: Path | None, begun: int = 0) -> str:
    """The cause, and the cure where there is one. `log`: the file that vLLM logs to; `begun`: its size before."""
    written = _tail(log, begun)
    why = _own_words(error)
    if _is_general(why):
        why = root_cause(written) or why
    return _with_cure(why, written)


def cure(text: str) -> str:
    """What to change, for the last problem in the text that is known; empty if none is."""
    found = [(match.start(), advice) for pattern, advice in CURES for match in re.finditer(pattern, text)]
    return max(found)[1] if found else ""


def root_cause(text: str) -> str:
    """The cause in the output of a failed process; empty: it contains no error."""
    if missing := LIBRARY.findall(text):  # vLLM only warns of it, and fails later with another error
        return f"{missing[-1]}: cannot open shared object file"
    chain: list[str] = []
    linked = False
    for block in text.split(BEGIN)[1:]:
        found = ERROR.search(block)
        if found is None:
            continue
        chain = [*chain, found[1]] if linked else [found[1]]
        linked = NESTED in found[1] or any(link in block[found.end() :] for link in LINKS)
    specific = [error for error in chain if not _is_general(error)]
    return next(iter(specific or [error for error in chain if FAILED in error]), "")  # a command that says no more


def missing_library() -> str:
    """The library that vLLM needs and pip does not install; empty: the machine has it, or this build needs none."""
    if not installed().endswith("+cpu"):
        return ""
    try:
        ctypes.CDLL(NUMA)
    except OSError as error:
        return _with_cure(str(error), "")
    return ""


def try_model(folder: Path) -> str:
    """Why vLLM cannot load the class of this model, which is an engine's first action; empty: it can, or
    vLLM does not know the class. Takes seconds, once for each class: vLLM caches it, and an engine starts sooner."""
    names = json.loads((folder / "config.json").read_text()).get("architectures") or []
    if not names or not installed() or _remembered(names[0]):
        return ""
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRY, names[0]],
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TRY_S,
        )
    except subprocess.TimeoutExpired:  # a busy machine: the engine's own start will show it
        return ""
    if done.returncode == 0:
        return ""
    written = done.stdout.decode(errors="replace")
    return _with_cure(root_cause(written) or f"{ENDED} {done.returncode}", written)


def size_of(log: Path | None) -> int:
    try:
        return log.stat().st_size if log is not None else 0
    except OSError:
        return 0


def _own_words(error: BaseException) -> str:
    """The error in one line; of pydantic's errors the first problem."""
    with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError):
        return str(error.errors()[0]["msg"])  # type: ignore[attr-defined]
    return " ".join(str(error).split()) or type(error).__name__


def _is_general(words: str) -> bool:
    return any(general in words for general in GENERAL)


def _with_cure(why: str, written: str) -> str:
    """Reads `written` only if `why` is a general error, because other lines of a log may name errors that are no
    cause."""
    advice = cure(why) or (cure(written) if _is_general(why) else "")
    return f"{why}: {advice}" if advice else why


def _remembered(architecture: str) -> bool:
    """Whether vLLM has inspected the class before."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("VLLM_CACHE_ROOT") or Path(caches) / "vllm")
    return any((root / "modelinfos").glob(f"*-{architecture}.json"))


def _tail(log: Path | None, begun: int) -> str:
    """The log, with tracebacks, as plain text."""
    if log is None:
        return ""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            start = begun if begun <= size else 0  # the file may have been rotated
            stream.seek(max(start, size - LOG_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(map(_plain, lines))


def _plain(line: str) -> str:
    try:
        entry = json.loads(line)
        return f"{entry['text']}\n{entry.get('error', {}).get('traceback', '')}"
    except (ValueError, KeyError, TypeError, AttributeError):  # not of rhymed, or its beginning is cut off
        return line.replace("\\n", "\n")
