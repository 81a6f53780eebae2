"""Weights by broadcast: the bits of the file for all members, and the file for everybody when one is missing or dies.

Over gloo on processors; members are threads, and a process where one is killed.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rhymed.errors import WireError
from rhymed_workers.engines.extension import Taken
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.weights.broadcast import group, notice, receiver
from rhymed_workers.weights.broadcast.receiver import Member
from rhymed_workers.weights.broadcast.sender import Broadcasts

CPU = torch.device("cpu")
DIES = """
import os, signal, sys
from pathlib import Path
import torch
from rhymed_workers.weights.broadcast import group
from rhymed_workers.weights.broadcast.receiver import Member

taken, group.CHUNK_BYTES = [], 4096
chunks = torch.distributed.ProcessGroupGloo.broadcast

def broadcast(self, tensors, options):
    taken.append(tensors)
    if len(taken) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return chunks(self, tensors, options)

torch.distributed.ProcessGroupGloo.broadcast = broadcast
print("here", flush=True)
Member().receive(Path(sys.stdin.readline().strip()), torch.device("cpu"))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loopback has another name")


class Trainer:
    """Publishes versions of random weights, and tells members."""

    def __init__(self, folder: Path, members: int, *, window_s: float = 30.0) -> None:
        self.offers = Broadcasts(members, window_s=window_s)
        self.publisher = Publisher(folder, offers=self.offers)
        self._threads = ThreadPoolExecutor(8)

    def publish(self, version: int) -> Path:
        generator = torch.Generator().manual_seed(version)
        table, turned = torch.randn(700, 33, generator=generator), torch.randn(30, 41, generator=generator).T
        named = {"embed": table, "turned": turned, "none": torch.empty(0), "head": table, "one": torch.ones(1)}
        return self.publisher.publish(version, named.items()).path

    def receive(self, member: Member, path: Path) -> Future[dict[str, Tensor]]:
        def work() -> dict[str, Tensor]:
            received = member.receive(path, CPU)
            copied = {name: tensor.clone() for name, tensor in received.tensors()}
            received.close()
            return copied

        return self._threads.submit(work)

    def close(self) -> None:
        self.publisher.close()
        self._threads.shutdown()


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    """Of two members."""
    monkeypatch.setenv("RHYMED_SHARED_MEMORY", str(tmp_path / "memory"))
    monkeypatch.setattr(group, "CHUNK_BYTES", 4096)
    made = Trainer(tmp_path / "weights", 2)
    yield made
    made.close()


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, bytes]]:
    return {
        name: (tensor.shape, tensor.contiguous().view(torch.int16).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def why(taking: Future[dict[str, Tensor]]) -> str:
    with pytest.raises(WireError) as refused:
        taking.result(60)
    return str(refused.value)


def test_all_members_get_the_bits_of_the_file_version_after_version(trainer: Trainer) -> None:
    members = [Member(), Member()]
    for version in (1, 2, 2, 3):  # one is published again
        path = trainer.publish(version)
        taking = [trainer.receive(member, path) for member in members]
        file = bits(load_file(path))
        assert [bits(one.result(60)) for one in taking] == [file, file]
        assert not path.with_suffix(notice.SUFFIX).exists(), "nobody else may wait for it"
    assert trainer.offers._generation == 0, "one group for all versions"


def test_a_member_that_does_not_come_costs_a_version_and_no_weights(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.offers._window_s = 0.1
    one, other = Member(), Member()
    path = trainer.publish(1)
    assert why(trainer.receive(one, path)) == "only 1 of 2 ranks of engines wait for it"
    trainer.offers._window_s = 30.0
    path = trainer.publish(2)
    taking = [trainer.receive(member, path) for member in (other, one)]
    assert [bits(each.result(60)) for each in taking] == 2 * [bits(load_file(path))]
    late = trainer.publish(3)
    taking = [trainer.receive(member, late) for member in (one, Member())]
    assert "has 2 members already" in why(taking[1])
    trainer.publish(4)  # ends the wait
    assert "only 1 of 2" in why(taking[0])


def test_a_version_that_nobody_takes_ends_no_group(trainer: Trainer) -> None:
    members = [Member(), Member()]
    for version in range(3):
        path = trainer.publish(version)
        if version != 1:
            for one in [trainer.receive(member, path) for member in members]:
                assert bits(one.result(60)) == bits(load_file(path))
    assert trainer.offers._generation == 0


class Vanishing(Member):
    """Its connections end in the middle of a broadcast, and it says nothing, as if it was killed."""

    def _take(self, about: notice.Notice, memory: Tensor) -> None:
        super()._take(about, memory[:12_288])
        raise WireError("killed")

    def _leave(self, about: notice.Notice) -> None:
        self._group = None


def test_a_member_that_dies_in_a_broadcast_leaves_the_others_the_file(trainer: Trainer) -> None:
    member, path = Member(), trainer.publish(1)
    gone, taking = trainer.receive(Vanishing(), path), trainer.receive(member, path)
    assert why(gone) == "killed"
    assert "broke off" in why(taking)
    goes_on_with_the_next_version(trainer, member, path)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_process_that_is_killed_in_a_broadcast_leaves_the_others_the_file(trainer: Trainer) -> None:
    command = [sys.executable, "-c", DIES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdin is not None
        assert killed.stdout is not None
        killed.stdout.readline()  # it has imported torch
        member, path = Member(), trainer.publish(1)
        print(path, file=killed.stdin, flush=True)
        assert "broke off" in why(trainer.receive(member, path))
    assert killed.returncode == -9
    goes_on_with_the_next_version(trainer, member, path)


def goes_on_with_the_next_version(trainer: Trainer, member: Member, path: Path) -> None:
    assert len(load_file(path)) == 4, "the file is there"
    path = trainer.publish(2)
    taking = [trainer.receive(each, path) for each in (member, Member())]
    assert [bits(one.result(60)) for one in taking] == 2 * [bits(load_file(path))]
    assert trainer.offers._generation == 1


def test_an_engine_says_why_it_took_the_file(trainer: Trainer) -> None:
    path, taken = trainer.publish(1), Taken()
    for wrong, reason in (
        ({"device": "cuda"}, "devices of the kind cuda, this is cpu"),
        ({"size": 7}, "7 bytes are broadcast for a file with"),
    ):
        notice.write(path, msgspec.structs.replace(notice.read(path), **wrong))
        tensors = dict(taken.tensors(path, CPU, "broadcast"))
        assert reason in taken.source
        assert bits(tensors) == bits(load_file(path))
        notice.write(path, msgspec.structs.replace(notice.read(path), device="cpu"))
    path.with_suffix(notice.SUFFIX).write_bytes(b"\xc1")
    assert bits(dict(taken.tensors(path, CPU, "broadcast"))) == bits(load_file(path))
    assert "is no notice of a broadcast" in taken.source
    notice.remove(path)
    assert bits(dict(taken.tensors(path, CPU, "broadcast"))) == bits(load_file(path))
    assert "no more, or not to this machine" in taken.source


def test_a_trainer_that_is_gone_costs_seconds(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "DECISION_S", 0.2)
    path = trainer.publish(1)
    about = notice.read(path)
    trainer.offers.withdraw()
    for keys, reason in ((about.store, "does not answer"), (f"{about.store}-gone", "has removed its broadcast")):
        notice.write(path, msgspec.structs.replace(about, store=keys, turn=9))
        assert reason in why(trainer.receive(Member(), path))


def test_a_folder_that_another_program_removed_is_made_again(trainer: Trainer) -> None:
    members = [Member(), Member()]
    for version in range(3):
        path = trainer.publish(version)
        for one in [trainer.receive(member, path) for member in members]:
            assert bits(one.result(60)) == bits(load_file(path))
        shutil.rmtree(path.parent)


def test_only_its_user_may_meet_the_trainer(trainer: Trainer) -> None:
    path = trainer.publish(1)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.with_suffix(notice.SUFFIX).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(notice.read(path).store).stat().st_mode) == 0o600


def test_a_group_of_gpus_is_nccl_s_with_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: torch's class is replaced, with the arguments that its stub has."""
    made: list[Any] = []

    class Nccl:
        class Options:
            _timeout: Any = None

        def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
            made.append((store, rank, size, options._timeout.total_seconds()))

        def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
            made.append((len(tensors[0]), options.rootRank))
            return SimpleNamespace(wait=lambda limit: made.append(limit.total_seconds()))

        def abort(self) -> None:
            made.append("abort")

    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    gpu = torch.device("cuda", 1)
    with pytest.raises(WireError, match="this torch has no NCCL"):
        group.Group("keys", 2, 5, gpu)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    found = group.Group("keys", 2, 5, gpu)
    found.broadcast(torch.zeros(group.CHUNK_BYTES + 1, dtype=torch.uint8))
    found.close()
    chunks = [(group.CHUNK_BYTES, 0), group.CHUNK_S, (1, 0), group.CHUNK_S]
    assert made == [("keys", 2, 5, group.FORM_S), *chunks, "abort"]
