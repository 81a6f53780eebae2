"""The process with environments: loads the user's tools or classes, then serves requests until its pipe is closed.

Runs in a cage (rhymed_workers.scoring.caged), which the pool kills when user code hangs.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Any

import msgspec

from rhymed.config import Config
from rhymed_workers.environment.hosting.runner import Runner
from rhymed_workers.environment.hosting.serving import Serving
from rhymed_workers.environment.protocol import Ready
from rhymed_workers.scorers.explain import describe
from rhymed_workers.scoring.cleanup import Cleanup
from rhymed_workers.scoring.frames import claim_pipes, get, limit, put


def main() -> None:
    requests, answers = claim_pipes()
    config = Config.model_validate_json(get(requests) or b"{}")
    settings = config.environment
    limit(resource.RLIMIT_DATA, settings.memory_gib * (1 << 30))  # before user code is imported
    serving, cleanup = Serving(requests, answers), list[Cleanup]()

    def tidy() -> None:
        with contextlib.suppress(Exception):  # files that user code removed or closed
            cleanup[0].restore()

    runner = Runner(settings.threads, settings.timeout_s, serving.moved, tidy)
    try:
        from rhymed_workers.environment.hosting.load import load_host

        host: Any = load_host(settings, runner)
        ready = msgspec.msgpack.encode(Ready(host.kind, host.tools, host.idempotent, host.pure, host.awaits))
    except BaseException as error:  # whatever a module does when it is imported
        put(answers, msgspec.msgpack.encode(Ready(error=str(error) or describe(error))))
        return
    limit(resource.RLIMIT_FSIZE, config.reward.file_mib << 20)
    limit(resource.RLIMIT_NOFILE, config.reward.open_files)
    cleanup.append(Cleanup())
    put(answers, ready)
    serving.run(host, runner)
