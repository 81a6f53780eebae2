"""Ranks that cannot train are refused with a cure before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.check.machine import describe, device_problems
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed_workers.trainer.distributed.node import TrainerNode
from rhymed_workers.trainer.distributed.seats import seats


def config(net: str = "", **trainer: Any) -> Config:
    return Config.model_validate({"trainer": trainer, "net": {"ranks": net}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ranks": 2}, "trainer.gpus = 2 for a rank on each of 2 GPUs"),
        ({"gpus": 2, "device": "cpu"}, "set trainer.ranks = 2 instead"),
        ({"nodes": 2}, "needs net.ranks"),
        ({"net": "tcp://127.0.0.1:5553"}, "net.ranks has no effect with trainer.nodes = 1"),
        ({"gpus": 2, "optimizer": "adamw_8bit"}, "only 'adamw' knows parts of tensors"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="trainer") as error:
        config(**settings)
    assert words in str(error.value)


def test_more_ranks_than_gpus_are_an_error_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert list(device_problems(config(gpus=4).trainer)) == []
    (problem,) = device_problems(config(gpus=8).trainer)
    assert problem.startswith("trainer.gpus = 8, but torch finds 4 GPUs on this machine: lower it")
    assert list(device_problems(config(ranks=8, device="cpu").trainer)) == []


@pytest.mark.parametrize("address", ["10.0.0.1:5553", "ipc:///tmp/a", "tcp://10.0.0.1", "tcp://10.0.0.1:port"])
def test_a_rendezvous_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"net\.ranks"):
        config(address, nodes=2)


def test_the_rendezvous_is_checked_and_its_open_traffic_is_named(tmp_path: Path) -> None:
    given = {"trainer": {"nodes": 2, "device": "cpu"}, "run": {"folder": str(tmp_path)}}
    foreign = Config.model_validate({**given, "net": {"ranks": "tcp://192.0.2.7:5553"}})
    found = describe(foreign)
    assert any("net.ranks = tcp://192.0.2.7:5553: cannot be bound (Cannot assign" in one for one in found.errors)
    assert any("neither encrypted nor authenticated" in one for one in found.warnings)


def test_ranks_are_counted_node_by_node() -> None:
    trainer = config("tcp://127.0.0.1:5553", gpus=4, nodes=2).trainer
    assert trainer.world == 8
    assert [seat.rank for node in range(2) for seat in seats(trainer, node)] == list(range(8))
    assert {seat.size for seat in seats(trainer, 1)} == {8}


@pytest.mark.parametrize("node", [2, -1])
def test_a_node_that_the_trainer_does_not_have_is_refused(node: int) -> None:
    with pytest.raises(ConfigError, match="there is 1 to 1"):
        TrainerNode(config("tcp://127.0.0.1:5553", nodes=2), node, "node")
