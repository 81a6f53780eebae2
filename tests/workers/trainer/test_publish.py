from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rhymed.core.config import Config
from rhymed.core.errors import MalformedMessage, TrainerError, WireError
from rhymed.core.messages import GetManifest, GetSlice, Manifest, NextSlices
from rhymed.core.service.host import host_id
from rhymed.core.wire.sockets import Client
from rhymed_workers.trainer import publish
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.trainer.trace import TraceLearner
from rhymed_workers.weights.server import WeightsServer
from tests.disks import fill, small_disk


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(7, 5, generator=generator)
    return {
        "embed": table,
        "norm": torch.randn(5, generator=generator),
        "turned": torch.randn(3, 4, generator=generator).T,
        "head": table,  # tied
        "none": torch.empty(0),
    }


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(tmp_path / "weights")
    yield made
    made.close()


def test_the_file_is_safetensors_in_the_engine_s_dtype_with_tied_tensors_once(publisher: Publisher) -> None:
    given = tensors(0)
    published = publisher.publish(3, given.items())
    found = load_file(published.path)
    assert found.keys() == {"embed", "norm", "turned", "none"}
    for name, tensor in found.items():
        assert torch.equal(tensor, given[name].to(torch.bfloat16)), name
    assert published.size == published.path.stat().st_size


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes(tmp_path: Path, dtype: str) -> None:
    publisher = Publisher(tmp_path / "weights", dtype)
    found = load_file(publisher.publish(0, tensors(0).items()).path)
    assert torch.equal(found["turned"], tensors(0)["turned"].to(getattr(torch, dtype)))
    publisher.close()


def test_two_versions_are_kept_and_a_reader_keeps_what_it_opened(publisher: Publisher) -> None:
    first = publisher.publish(0, tensors(0).items()).path
    with first.open("rb") as opened:
        for version in (1, 2):
            publisher.publish(version, tensors(version).items())
        assert not first.exists()
        assert len(opened.read()) > 0
    with pytest.raises(TrainerError, match=r"version 0 .* there is: 1, 2"):
        publisher.find(0)
    assert len(list(publisher.find(2).path.parent.iterdir())) == 2


def test_closing_removes_everything_and_so_does_the_next_trainer(tmp_path: Path) -> None:
    killed = Publisher(tmp_path / "weights")
    left = killed.publish(5, tensors(0).items()).path
    publisher = Publisher(tmp_path / "weights")
    made = publisher.publish(0, tensors(0).items()).path
    assert not left.exists()
    publisher.close()
    assert not made.parent.exists()


def test_what_is_published_while_it_closes_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path / "weights")
    made, write = publisher.publish(0, tensors(0).items()).path, publish._write

    def late(*arguments: object, **named: object) -> None:
        publisher.close()
        write(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(publish, "_write", late)
    with pytest.raises(TrainerError, match="the trainer ends"):
        publisher.publish(1, tensors(1).items())
    assert not made.parent.exists()
    assert not (tmp_path / "weights").exists()


def test_without_room_in_shared_memory_the_run_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = publish.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(publish.shutil, "disk_usage", lambda path: usage._replace(free=10))
    publisher = Publisher(tmp_path / "weights")
    assert publisher.publish(0, tensors(0).items()).path.parent == tmp_path / "weights"
    assert "slower" in caplog.text
    publisher.close()


def test_shared_memory_that_becomes_full_is_left_for_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "memory", "1m") as memory, small_disk(tmp_path / "run", "1m") as run:
        monkeypatch.setattr(publish, "shared_memory", lambda: memory)
        publisher = Publisher(run / "weights")
        assert publisher.publish(0, tensors(0).items()).path.is_relative_to(memory)
        fill(memory)
        assert publisher.publish(1, tensors(1).items()).path.parent == run / "weights"
        assert f"cannot take the weights ([Errno 28] No space left on device): publishing to {run}" in caplog.text
        assert publisher.find(0).path.is_relative_to(memory), "it is still kept"
        fill(run)
        with pytest.raises(TrainerError, match=r"run/weights cannot take the weights: .*No space left.*free some"):
            publisher.publish(2, tensors(2).items())
        publisher.close()
        assert [path.name for path in memory.iterdir()] == ["filler"]


@pytest.fixture
async def link(publisher: Publisher, tmp_path: Path) -> AsyncIterator[Client]:
    server = WeightsServer(f"ipc://{tmp_path}/w", publisher)
    client = Client(server.address, peer="weights")
    yield client
    client.close()
    server.close()


async def manifest_of(link: Client, version: int) -> Manifest:
    answer = (await link.request(GetManifest(version=version))).message
    assert isinstance(answer, Manifest)
    return answer


async def test_slices_are_the_file_and_have_its_digests(link: Client, publisher: Publisher) -> None:
    published = publisher.publish(4, {"w": torch.randn(1200, 1000)}.items())
    manifest = await manifest_of(link, 4)
    assert (manifest.host, manifest.path, manifest.size) == (host_id(), str(published.path), published.size)
    begin = NextSlices(edition=manifest.edition, worker="w", begin=True, want=9)
    sources = (await link.request(begin)).message.slices
    content = b""
    for source in sorted(sources, key=lambda found: found.index):
        frame = bytes((await link.request(GetSlice(edition=manifest.edition, index=source.index))).frames[0])
        assert hashlib.sha256(frame).hexdigest() == source.digest
        content += frame
    assert len(sources) > 1
    assert content == published.path.read_bytes()


async def test_what_is_not_there_is_an_error(link: Client, publisher: Publisher) -> None:
    publisher.publish(4, tensors(1).items())
    edition = (await manifest_of(link, 4)).edition
    with pytest.raises(TrainerError, match=r"version 9 .* there is: 4"):
        await link.request(GetManifest(version=9))
    with pytest.raises(TrainerError, match="a newer one has replaced it"):
        await link.request(GetSlice(edition="other", index=0))
    with pytest.raises(WireError, match=r"int` >= 0 - at `\$\.index"):
        await link.request(GetSlice(edition=edition, index=-1))
    for index in (1, 2**40):
        with pytest.raises(WireError, match="of a file that has 1"):
            await link.request(GetSlice(edition=edition, index=index))
    with pytest.raises(TrainerError, match="did not begin"):
        await link.request(NextSlices(edition=edition, worker="w", stored=[0]))
    with pytest.raises(MalformedMessage, match="no address that other hosts reach"):
        await link.request(NextSlices(edition=edition, worker="w", begin=True, relay="ipc://x"))


def test_a_version_is_published_although_the_folder_of_the_last_one_is_gone(publisher: Publisher) -> None:
    """As after a cleaner of /dev/shm."""
    first = publisher.publish(1, tensors(1).items())
    shutil.rmtree(first.path.parent)
    second = publisher.publish(2, tensors(2).items())
    assert set(load_file(second.path)) >= {"embed", "norm"}
    assert publisher.find(1).path.exists()


async def test_a_version_whose_file_was_cut_is_published_again_from_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(publish, "LOOK_S", 0.01)
    learner = TraceLearner(Config().trace, Config().schedule)
    publisher = Publisher(tmp_path / "weights", learner.dtype)
    first = publisher.publish_from(learner)
    os.truncate(first.path, 10)

    async def at_once(work: Callable[[], None], activity: str) -> None:
        work()

    replacing = asyncio.create_task(publisher.replace_lost(learner, at_once))
    try:
        with pytest.raises(TrainerError, match="version 0 of the weights was lost"):
            publisher.find(0)
        async with asyncio.timeout(60):
            while publisher._kept[0].edition == first.edition:
                await asyncio.sleep(0.01)
        assert publisher.find(0).path.stat().st_size == first.size
    finally:
        replacing.cancel()
        publisher.close()
