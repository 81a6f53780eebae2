"""The process with environments: loads the user's tools or class, then answers one request after another.

Runs in a cage (rhymed_workers.scoring.caged), which the pool kills when a request takes too long. What a tool raises
is an answer that the policy reads; what an environment raises breaks its sample.
"""

from __future__ import annotations

import resource

import msgspec

from rhymed.config import Config
from rhymed_workers.environment.protocol import Answer, Close, Open, Ready, Request, Step
from rhymed_workers.scorers.explain import describe
from rhymed_workers.scoring.cleanup import Cleanup
from rhymed_workers.scoring.frames import claim_pipes, get, limit, put


def main() -> None:
    requests, answers = claim_pipes()
    config = Config.model_validate_json(get(requests) or b"{}")
    limit(resource.RLIMIT_DATA, config.environment.memory_gib * (1 << 30))  # before user code is imported
    try:
        from rhymed_workers.environment.load import load_host

        host = load_host(config.environment)
        ready = Ready(host.kind, host.tools, host.idempotent)
    except BaseException as error:  # whatever a module does when it is imported
        put(answers, msgspec.msgpack.encode(Ready(error=str(error) or describe(error))))
        return
    limit(resource.RLIMIT_FSIZE, config.reward.file_mib << 20)
    limit(resource.RLIMIT_NOFILE, config.reward.open_files)
    cleanup = Cleanup()
    put(answers, msgspec.msgpack.encode(ready))
    while (body := get(requests)) is not None:
        request: Request = msgspec.msgpack.decode(body, type=Request)
        try:
            match request:
                case Open():
                    answer = Answer(request.number, chat=host.open(request))
                case Step():
                    answer = Answer(request.number, stepped=host.step(request))
                case Close():
                    host.close(request.name)
                    answer = Answer(request.number)
            data = msgspec.msgpack.encode(answer)
        except BaseException as error:  # SystemExit is user code's too
            data = msgspec.msgpack.encode(Answer(request.number, error=host.explain(error)))
        cleanup.run()
        put(answers, data)
