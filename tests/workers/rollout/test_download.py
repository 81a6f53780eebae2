"""Weights over a real socket from the trainer's real publisher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhymed.errors import TrainerError, WireError
from rhymed_workers.rollout import download
from rhymed_workers.rollout.download import PREFIX, Fetcher

torch = pytest.importorskip("torch")


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Any]:
    from rhymed_workers.trainer.publish import Publisher

    publisher = Publisher(tmp_path / "published")
    yield publisher
    publisher.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'weights'}"


def copies(base: Path) -> list[Path]:
    return list(base.glob(f"{PREFIX}*"))


def publish(publisher: Any, version: int) -> bytes:
    generator = torch.Generator().manual_seed(version)
    found = publisher.publish(version, {"a": torch.randn(3000, 700, generator=generator)}.items())
    return bytes(found.path.read_bytes())


async def test_the_same_machine_reads_the_trainers_file(publisher: Any, address: str) -> None:
    from rhymed_workers.trainer.publish import WeightsServer

    data = publish(publisher, 3)
    server, fetcher = WeightsServer(address, publisher), Fetcher("reader")
    try:
        path = await fetcher.fetch(3, address)
        assert path == publisher.find(3).path
        assert path.read_bytes() == data
        with pytest.raises(TrainerError, match="version 9 of the weights is not kept; there is: 3"):
            await fetcher.fetch(9, address)
    finally:
        fetcher.close()
        server.close()
    assert publisher.find(3).path.exists()


async def test_another_machine_copies_and_keeps_one(
    publisher: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rhymed_workers.trainer.publish import WeightsServer

    monkeypatch.setattr(download, "SLICE_BYTES", 100_000)  # so that there are many
    (tmp_path / f"{PREFIX}999999999-old").mkdir()  # of a worker that was killed
    server, fetcher = WeightsServer(address, publisher), Fetcher("reader", host="elsewhere", base=tmp_path)
    try:
        for version in (1, 2):
            data = publish(publisher, version)
            path = await fetcher.fetch(version, address)
            assert path.read_bytes() == data
            assert [file.name for file in path.parent.iterdir()] == [f"v{version}.safetensors"]
        assert len(copies(tmp_path)) == 1
    finally:
        fetcher.close()
        server.close()
    assert not copies(tmp_path)


async def test_a_damaged_copy_is_never_seen(
    publisher: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rhymed_workers.trainer.publish import WeightsServer

    publish(publisher, 1)
    monkeypatch.setattr(publisher, "digest", lambda version: "00" * 16)
    server, fetcher = WeightsServer(address, publisher), Fetcher("reader", host="elsewhere", base=tmp_path)
    try:
        with pytest.raises(WireError, match=r"version 1 .* arrived damaged"):
            await fetcher.fetch(1, address)
        assert not any(file for folder in copies(tmp_path) for file in folder.iterdir())
    finally:
        fetcher.close()
        server.close()
