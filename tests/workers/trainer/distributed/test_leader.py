"""Rank 0's side with real processes, and the store of keys in which ranks meet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, TrainerError
from rhymed.core.run.layout import layout_of

torch = pytest.importorskip("torch")

from rhymed_workers.trainer.distributed import follower, orders
from rhymed_workers.trainer.distributed.leader import MODULE, Leader
from rhymed_workers.trainer.distributed.rendezvous import Rendezvous, listen
from rhymed_workers.trainer.distributed.seats import Seat
from tests.ports import free_ports


def config(folder: Path, **trainer: Any) -> Config:
    tree = {"run": {"folder": str(folder)}, "trainer": {"device": "cpu", "ranks": 2, **trainer}}
    return Config.model_validate(tree)


def test_a_rank_whose_rank_0_does_not_answer_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rhymed_workers.trainer.distributed.rendezvous.ANSWER_S", 1.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    assert follower._meet(config(tmp_path), Seat(1, 0, 1, 2), address) == 1
    assert f"rank 0 of the trainer does not answer at {address}" in caplog.text


def test_a_rank_ends_with_its_parent_and_has_its_log_before_torch_is_imported() -> None:
    code = f"import sys, {MODULE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_leader_leaves_the_file_by_which_ranks_find_their_folder(tmp_path: Path) -> None:
    tree = config(tmp_path).model_dump()
    tree["trainer"]["nodes"], tree["net"]["ranks"] = 2, f"tcp://127.0.0.1:{free_ports(1)[0]}"
    settings = Config.model_validate(tree)
    folder = layout_of(settings).folder
    folder.mkdir(parents=True)
    (folder / ".ranks-1").touch()  # of a leader that was killed
    leader = Leader(settings, "2")
    assert [file.name for file in folder.glob(".ranks-*")] == [".ranks-2"]
    leader.close()
    assert not list(folder.glob(".ranks-*"))


@pytest.fixture
def rendezvous() -> tuple[Rendezvous, Rendezvous]:
    """Rank 0's and another rank's."""
    listener, address = listen("")
    return Rendezvous(address, listener), Rendezvous(address)


def test_orders_arrive_in_their_order(rendezvous: tuple[Rendezvous, Rendezvous]) -> None:
    first, other = rendezvous
    given = [orders.Load(None), orders.Train(3), orders.Gather(), orders.Save("/a", True)]
    for order in given:
        first.give(order)
    assert [other.take() for _ in given] == given


def test_an_error_arrives_with_its_kind(rendezvous: tuple[Rendezvous, Rendezvous]) -> None:
    first, other = rendezvous
    assert first.error_of(1) is None
    other.fail(1, ConfigError("model.path: is not there"))
    other.fail(2, RuntimeError("out of memory"))
    own, foreign = first.error_of(1), first.error_of(2)
    assert isinstance(own, ConfigError)
    assert str(own) == "model.path: is not there"
    assert isinstance(foreign, TrainerError)
    assert str(foreign) == "rank 2 of the trainer: RuntimeError: out of memory"


def test_digests_are_of_one_checkpoint(rendezvous: tuple[Rendezvous, Rendezvous]) -> None:
    first, other = rendezvous
    for number in range(2):
        other.put_digests(1, f"/{number}", {"optimizer/part": str(number)})
        assert first.get_digests(2, f"/{number}", timedelta(seconds=5)) == {"optimizer/part": str(number)}


def test_without_an_address_only_this_machine_reaches_it() -> None:
    listener, address = listen("")
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert address == f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_that_cannot_be_bound_is_an_error_with_a_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(TrainerError, match="name an address of this machine and a free port"):
            listen(f"tcp://127.0.0.1:{taken.getsockname()[1]}")


async def test_a_rank_that_dies_is_seen_and_the_others_end(tmp_path: Path) -> None:
    leader = Leader(config(tmp_path, ranks=3), "a")
    try:
        pids = [one.process.pid for one in leader._followers._all]
        os.kill(pids[1], signal.SIGKILL)
        async with asyncio.timeout(30):
            with pytest.raises(TrainerError, match=r"rank 2 of the trainer ended \(signal SIGKILL\)"):
                await leader.watch()
    finally:
        leader.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_rank_whose_parent_is_gone_does_not_begin(tmp_path: Path) -> None:
    place = ["0", "1", "2", "1", "1"]  # its parent would be process 1
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--name", "trainer-1", "tcp://127.0.0.1:1", *place],
        input=json.dumps({}).encode(),
        timeout=60,
    )
    assert done.returncode == 1
