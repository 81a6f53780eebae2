"""Weights over real sockets from the trainer's real publisher, to workers that count as on other hosts."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rhymed.core.errors import TrainerError, WireError
from rhymed.core.messages import GetSlice, Slice
from rhymed.core.wire.keys import Keyring, make_keys
from rhymed.core.wire.sockets import Parcel
from rhymed_workers.weights import slices
from rhymed_workers.weights.copies import PREFIX
from rhymed_workers.weights.fetch import NO_RELAY, Fetcher, RelayOptions
from rhymed_workers.weights.relay import Copy
from tests.workers.weights.peers import Trainer, child, fetchers, trainer, words


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Trainer]:
    async with trainer(tmp_path) as found:
        yield found


def copies(base: Path) -> list[Path]:
    return list(base.glob("host*/*/v*"))


async def test_the_same_machine_reads_the_trainers_file(made: Trainer) -> None:
    data = made.publish(3, words(0.1))
    fetcher = Fetcher("reader")
    try:
        path = await fetcher.fetch(3, made.address)
        assert path == made.publisher.find(3).path
        assert path.read_bytes() == data
        with pytest.raises(TrainerError, match="version 9 of the weights is not kept; there is: 3"):
            await fetcher.fetch(9, made.address)
    finally:
        fetcher.close()
    assert made.publisher.find(3).path.exists()
    assert not made.sent


async def test_another_machine_keeps_the_newest_copy(made: Trainer, tmp_path: Path) -> None:
    (left := tmp_path / "host0" / f"{PREFIX}{os.geteuid()}-old").mkdir(parents=True)
    (left / "users").touch()  # of workers that were killed
    with fetchers(tmp_path, 1) as (fetcher,):
        for version in (1, 2, 3):
            data = made.publish(version, words(2.6, version))
            path = await fetcher.fetch(version, made.address)
            assert path.read_bytes() == data
            assert list(path.parent.glob("v*")) == [path]
            assert await fetcher.fetch(version, made.address) == path, "once is enough"
        assert not left.exists()
    assert len(made.sent) == 3 * 3
    assert not list((tmp_path / "host0").iterdir())


async def test_workers_of_one_host_share_one_copy(made: Trainer, tmp_path: Path) -> None:
    data = made.publish(1, words(5))
    workers = [Fetcher(f"rollout-{number}", host="elsewhere", base=tmp_path) for number in range(4)]
    try:
        paths = await asyncio.gather(*(worker.fetch(1, made.address) for worker in workers))
        assert len(set(paths)) == 1
        assert paths[0].read_bytes() == data
        assert sorted(made.sent) == [0, 1, 2, 3, 4, 5], "the file and its header, once"
        made.publish(2, words(5, 2))
        await workers[0].fetch(2, made.address)
        assert paths[0].exists(), "the others still read it"
        await asyncio.gather(*(worker.fetch(2, made.address) for worker in workers))
        assert not paths[0].exists()
    finally:
        for worker in workers:
            worker.close()


async def test_the_trainer_sends_once_and_hosts_pass_it_on(made: Trainer, tmp_path: Path) -> None:
    data = made.publish(1, words(12))
    with fetchers(tmp_path, 3) as workers:
        paths = await asyncio.gather(*(worker.fetch(1, made.address) for worker in workers))
        assert len(set(paths)) == 3
        assert all(path.read_bytes() == data for path in paths)
        assert sorted(made.sent) == list(range(13))


async def test_with_keys_it_is_the_same(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ("trainer", "rollout"))
    async with trainer(tmp_path, Keyring("trainer", tmp_path / "keys")) as made:
        data = made.publish(1, words(6))
        with fetchers(tmp_path, 2, Keyring("rollout", tmp_path / "keys")) as workers:
            paths = await asyncio.gather(*(worker.fetch(1, made.address) for worker in workers))
            assert all(path.read_bytes() == data for path in paths)
        assert sorted(made.sent) == list(range(7))


async def test_without_relays_the_trainer_sends_to_everybody(made: Trainer, tmp_path: Path) -> None:
    data = made.publish(1, words(3))
    with fetchers(tmp_path, 2, relay=NO_RELAY) as workers:
        paths = await asyncio.gather(*(worker.fetch(1, made.address) for worker in workers))
        assert all(path.read_bytes() == data for path in paths)
    assert sorted(made.sent) == sorted(2 * list(range(4)))


async def test_a_relay_that_nobody_reaches_costs_seconds_and_nothing_else(
    made: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made.publish(1, words(3))
    with fetchers(tmp_path, 2) as workers:
        await workers[0].fetch(1, made.address)
        assert workers[0]._relay is not None
        workers[0]._relay.address = "tcp://127.0.0.1:1"  # as behind a firewall
        data = made.publish(2, words(3, 2))
        for worker in workers:
            assert (await worker.fetch(2, made.address)).read_bytes() == data
    assert "cannot be reached" in caplog.text


async def test_a_killed_relay_in_the_middle(made: Trainer, tmp_path: Path) -> None:
    data = made.publish(1, words(24))
    process = child(made.address, "rollout-k", tmp_path / "k")
    try:
        while len(made.sent) < 4:  # the other host has begun, and others count on it
            await asyncio.sleep(0.005)
        with fetchers(tmp_path, 2) as workers:
            fetching = asyncio.gather(*(worker.fetch(1, made.address) for worker in workers))
            await asyncio.sleep(0.05)
            process.kill()
            assert all(path.read_bytes() == data for path in await fetching)
    finally:
        process.kill()
        process.wait()


async def test_another_worker_goes_on_when_the_one_that_fetches_is_killed(made: Trainer, tmp_path: Path) -> None:
    data = made.publish(1, words(24))
    base = tmp_path / "shared"
    process = child(made.address, "rollout-k", base)
    fetcher = Fetcher("rollout-1", host="elsewhere", base=base)
    try:
        while not made.sent:
            await asyncio.sleep(0.005)
        fetching = asyncio.ensure_future(fetcher.fetch(1, made.address))
        await asyncio.sleep(0.02)
        process.kill()
        path = await fetching
        assert path.read_bytes() == data
        assert not list(path.parent.glob("*.part"))
    finally:
        process.kill()
        process.wait()
        fetcher.close()


async def test_a_file_that_always_arrives_damaged_is_never_seen(
    made: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.publish(1, words(3))
    real = made.server._slice

    async def damaged(ask: GetSlice) -> Parcel:
        message, frames = await real(ask)
        content = bytearray(frames[0])
        content[5] ^= ask.index == 2
        return Parcel(message, [content])

    monkeypatch.setattr(made.server, "_slice", damaged)
    with fetchers(tmp_path, 1) as (fetcher,):
        with pytest.raises(WireError, match=r"slice 2 of edition .* arrived damaged"):
            await fetcher.fetch(1, made.address)
        assert not copies(tmp_path)
        monkeypatch.undo()
        await fetcher.fetch(1, made.address)


async def test_a_relay_that_sends_damaged_slices_is_passed_over(
    made: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made.publish(1, words(4))
    wrong = 0

    def poisoned(self: Copy, ask: GetSlice) -> Parcel:
        nonlocal wrong
        wrong += 1
        return Parcel(Slice(), [bytes(1 << 20)])

    monkeypatch.setattr(Copy, "answer", poisoned)
    with fetchers(tmp_path, 2) as workers:
        for worker in workers:
            assert (await worker.fetch(1, made.address)).read_bytes() == data
    assert wrong


async def test_weights_that_vanished_are_published_again(made: Trainer, tmp_path: Path) -> None:
    data = made.publish(1, words(2))
    near = Fetcher("near")
    with fetchers(tmp_path, 1) as (far,):
        try:
            path = await near.fetch(1, made.address)
            path.unlink()
            assert (await near.fetch(1, made.address)).read_bytes() == data
            path.unlink()
            path.parent.rmdir()
            assert (await far.fetch(1, made.address)).read_bytes() == data
            copy = await far.fetch(1, made.address)
            copy.unlink()
            assert (await far.fetch(1, made.address)).read_bytes() == data, "and so is a copy"
        finally:
            near.close()


async def test_a_published_file_that_was_cut_off_is_an_error_in_words(made: Trainer, tmp_path: Path) -> None:
    made.publish(1, words(2))
    os.truncate(made.publisher.find(1).path, 1000)
    with fetchers(tmp_path, 1) as (far,), pytest.raises(TrainerError, match="another program changed it"):
        await far.fetch(1, made.address)


async def test_a_new_trainer_at_the_address(tmp_path: Path) -> None:
    """After a rollback the same version is another file."""
    with fetchers(tmp_path, 1) as (fetcher,):
        for seed in (0, 1):
            made = Trainer(tmp_path / "published", f"ipc://{tmp_path}/weights")
            try:
                data = made.publish(1, words(2, seed))
                assert (await fetcher.fetch(1, made.address)).read_bytes() == data
            finally:
                made.close()


async def test_a_trainer_that_restarts_in_the_middle(tmp_path: Path) -> None:
    """Its files are others, even under the same version: what was fetched counts for nothing."""
    address = f"ipc://{tmp_path}/weights"
    with fetchers(tmp_path, 1) as (fetcher,):
        made = Trainer(tmp_path / "published", address)
        made.publish(1, words(24))
        fetching = asyncio.ensure_future(fetcher.fetch(1, address))
        while len(made.sent) < 4:
            await asyncio.sleep(0.001)
        made.close()
        made = Trainer(tmp_path / "published", address)
        try:
            data = made.publish(1, words(24, 1))
            with pytest.raises(TrainerError, match=r"a newer one has replaced it|is not kept|did not begin"):
                await fetching
            assert not copies(tmp_path)
            assert (await fetcher.fetch(1, address)).read_bytes() == data
        finally:
            made.close()


async def test_a_small_file_comes_from_the_trainer(made: Trainer, tmp_path: Path) -> None:
    data = made.publish(1, words(0.2))
    with fetchers(tmp_path, 3) as workers:
        paths = await asyncio.gather(*(worker.fetch(1, made.address) for worker in workers))
        assert all(path.read_bytes() == data for path in paths)
        assert all(worker._relay is None for worker in workers)
    assert made.sent == [0, 0, 0]


async def test_a_full_disk_is_an_error_in_words(
    made: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: slices.MappedFile, index: int, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made.publish(1, words(4))
    monkeypatch.setattr(slices.MappedFile, "write", full)
    with fetchers(tmp_path, 1) as (worker,), pytest.raises(WireError, match="has no room for version 1"):
        await worker.fetch(1, made.address)


async def test_a_folder_that_cannot_be_made_is_an_error_in_words(made: Trainer, tmp_path: Path) -> None:
    made.publish(1, words(0.2))
    (tmp_path / "file").touch()
    fetcher = Fetcher("rollout-0", host="elsewhere", base=tmp_path / "file")
    with pytest.raises(WireError, match="RHYMED_SHARED_MEMORY"):
        await fetcher.fetch(1, made.address)
    fetcher.close()


async def test_an_address_that_cannot_be_bound_is_logged(
    made: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = made.publish(1, words(3))
    with fetchers(tmp_path, 1, relay=RelayOptions("tcp://192.0.2.7:7000")) as (fetcher,):
        assert (await fetcher.fetch(1, made.address)).read_bytes() == data
    assert "passes no weights on" in caplog.text


def test_slices_and_deadlines_follow_from_the_size() -> None:
    for size in (1, 1 << 20, (1 << 20) + 1, 300_000_000, 3 << 30, 15 << 30, 141 << 30):
        slicing = slices.slicing(size)
        lengths = [slicing.length(index) for index in (0, slicing.count - 1)]
        assert sum(lengths[:1]) + (slicing.count - 2) * slicing.slice_bytes + lengths[1] == size or slicing.count == 1
        assert slicing.count <= 10_000
    with pytest.raises(WireError, match="slice 7 of a file that has 2"):
        slices.Slicing(9, 5).start(7)
    assert slices.deadline_s(16 << 20, False) > slices.deadline_s(1 << 20, False) > slices.LATENCY_S
