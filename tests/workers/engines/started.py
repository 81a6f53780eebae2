"""Starts a process by a given method, in a program that has imported the extension before, as a rollout worker has.

`python -m tests.workers.engines.started METHOD`: the process takes vLLM's way to a worker, up to its constructor, and
what of ours it has then is printed.

No engine: on a CPU vLLM always spawns, since OpenMP's threads do not survive a fork.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

from rhymed_workers.engines.extension import BACKEND
from rhymed_workers.engines.launch import end_children, environment


def worker_of(connection: Any) -> None:
    """As vLLM's `WorkerWrapperBase.init_worker` makes a worker."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    class Base:
        """As vLLM's `WorkerBase`: a class directly below `object` takes no other base later."""

    class Worker(Base):
        def __init__(self, **_: Any) -> None:
            registered = BACKEND in WeightTransferEngineFactory._registry
            keyed = hasattr(GPUModelRunner.initialize_kv_cache, "rhymed")
            connection.send({"registered": registered, "keyed": keyed})

    extension: Any = resolve_obj_by_qualname("rhymed_workers.engines.extension.Extension")
    Worker.__bases__ = (*Worker.__bases__, extension)
    Worker(vllm_config=None)


def started(method: str) -> dict[str, Any]:
    environment()
    import vllm.v1.worker.gpu_model_runner  # noqa: F401  # a fork has all that its parent imported

    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=worker_of, args=(there,))
    process.start()
    found: dict[str, Any] = here.recv()
    process.join()
    end_children()
    return found


if __name__ == "__main__":
    print(json.dumps(started(sys.argv[1])))
