"""Which transport takes weights to the engines on the trainer's machine, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.gpus.transport import choose

IPC = {"net": {"transport": "ipc"}}
SENT = {"net": {"transport": "broadcast"}}
GANG = {"trainer": {"device": "cpu", "ranks": 2}}


@pytest.mark.parametrize(
    ("given", "transport", "why"),
    [
        ({}, "file", 'net.transport = "ipc" is not tried'),
        (IPC, "file", "schedule.colocate = true would share them"),
        (IPC | {"schedule": {"colocate": True}}, "ipc", r"the trainer's GPU \(not tried on a GPU\); the file is"),
        (
            IPC | {"schedule": {"colocate": True}, "rollout": {"tensor_parallel": 2}},
            "ipc",
            "its first rank of 2 maps",
        ),
        (IPC | {"trainer": {"device": "cpu"}}, "ipc", "host memory"),
        (IPC | GANG, "file", "several ranks"),
        (IPC | {"trainer": {"lora": {"rank": 8}}}, "file", "adapters are small"),
        (SENT | {"rollout": {"workers": 3, "tensor_parallel": 2}}, "broadcast", "to 6 ranks at once by NCCL"),
        (SENT | {"trainer": {"device": "cpu"}}, "broadcast", "to 1 rank at once by gloo"),
        (SENT | {"schedule": {"colocate": True}}, "file", "engines share the trainer's GPU"),
        (SENT | {"schedule": {"max_staleness": 1}}, "file", "at different times"),
        (SENT | {"rollout": {"workers": 0}}, "file", "that `rhymed run` starts"),
        (SENT | GANG, "file", "several ranks"),
        (IPC | {"rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}}, "file", "only vLLM's engine"),
    ],
)
def test_a_transport_has_a_reason(given: dict[str, Any], transport: str, why: str) -> None:
    found = choose(Config.model_validate(given))
    assert found.transport == transport
    assert re.search(why, found.why), found.why
