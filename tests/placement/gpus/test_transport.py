"""Which transport takes weights to the engines on the trainer's machine."""

from __future__ import annotations

from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.placement.gpus import transport

IPC = {"net": {"transport": "ipc"}}
GANG = {"trainer": {"device": "cpu", "ranks": 2}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "file"),
        (IPC, "file"),
        (IPC | {"schedule": {"colocate": True}}, "ipc"),
        (IPC | {"schedule": {"colocate": True}, "rollout": {"tensor_parallel": 2}}, "ipc"),
        (IPC | {"trainer": {"device": "cpu"}}, "ipc"),
        (IPC | GANG, "file"),
        (IPC | {"trainer": {"lora": {"rank": 8}}}, "file"),
        (IPC | {"rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}}, "file"),
    ],
)
def test_memory_is_mapped_where_it_is_asked_for_and_shared(given: dict[str, Any], found: str) -> None:
    assert transport(Config.model_validate(given)) == found
