"""Which transport takes weights to the engines on the trainer's machine, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.placement.gpus import choose

IPC = {"net": {"transport": "ipc"}}
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
        (IPC | {"rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}}, "file", "only vLLM's engine"),
    ],
)
def test_a_transport_has_a_reason(given: dict[str, Any], transport: str, why: str) -> None:
    found = choose(Config.model_validate(given))
    assert found.transport == transport
    assert re.search(why, found.why), found.why
