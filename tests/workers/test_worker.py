"""Membership against a broker's front that can forget the worker and refuse it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rhymed.core import messages
from rhymed.core.errors import NameTaken, PeerGone, RhymedError, WireError
from rhymed.core.service import retry
from rhymed.core.wire.sockets import DONE, Client, Server
from rhymed.placement.usage import Devices, UsageMeter
from rhymed_workers import worker as worker_module
from rhymed_workers.worker import Membership
from tests.placement.usage.fake_nvml import Device, FakeNvml
from tests.workers.peers import until

NAME = "reward-0"
REPORT = messages.Scored(worker=NAME, scores=[])


class Front:
    """Knows the worker from its Join on; `refusal` is what it answers to the next Join."""

    def __init__(self, address: str) -> None:
        self.knows = False
        self.refusal: RhymedError | None = None
        self.refusals = 1  # times that it answers so
        self.received: list[Any] = []
        self.answers = asyncio.Event()  # to a Join; until then it only has it
        self.answers.set()
        self.server = Server(address, messages.ToBroker, self._answer)

    async def _answer(self, peer: bytes, message: Any, frames: Any) -> messages.Message:
        if isinstance(message, messages.Join):
            if self.refusal is not None and self.refusals:
                self.refusals -= 1
                raise self.refusal
            self.knows = True
        elif not self.knows:
            raise PeerGone("join first")
        self.received.append(message)
        if isinstance(message, messages.Join):
            await self.answers.wait()
            return messages.Welcome(run="run", heartbeat_s=0.02, lost_after_s=5, step=0)
        return DONE

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.received]


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    front = Front(f"ipc://{tmp_path}/broker")
    yield front
    front.server.close()


@pytest.fixture
async def link(front: Front) -> AsyncIterator[Client]:
    link = Client(front.server.address, NAME, peer="broker")
    yield link
    link.close()


def member(link: Client, lost_after_s: float = 20.0, **options: Any) -> Membership:
    return Membership(
        link,
        lambda: messages.Join(role="reward", worker=NAME, host="here", pid=1),
        lambda: messages.Heartbeat(worker=NAME),
        lost_after_s,
        **options,
    )


async def test_a_forgotten_worker_joins_again_at_its_next_heartbeat(front: Front, link: Client) -> None:
    running = asyncio.ensure_future(member(link).run())
    await until(lambda: "Heartbeat" in front.kinds())
    front.knows = False
    await until(lambda: front.kinds().count("Join") == 2)
    await until(lambda: front.kinds()[-1] == "Heartbeat")
    running.cancel()


async def test_who_stops_before_its_join_is_answered_leaves(front: Front, link: Client) -> None:
    front.answers.clear()
    joining = member(link)
    running = asyncio.ensure_future(joining.run())
    await until(lambda: front.kinds() == ["Join"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    front.answers.set()
    await joining.leave(NAME)
    assert front.kinds() == ["Join", "Leave"]


async def test_a_report_to_a_broker_that_forgot_joins_and_is_repeated(front: Front, link: Client) -> None:
    await member(link).report(REPORT, "reporting scores")
    assert front.kinds() == ["Join", "Scored"]


async def test_reports_that_are_refused_at_the_same_time_join_once(front: Front, link: Client) -> None:
    """A second join without what the first one brought would be a worker that died with it."""
    joined = member(link)
    await joined.join()
    front.knows = False
    await asyncio.gather(*(joined.report(REPORT, "reporting scores") for _ in range(8)))
    assert front.kinds().count("Join") == 2
    assert front.kinds().count("Scored") == 8


async def test_which_refusals_are_retried_is_the_callers_choice(front: Front, link: Client) -> None:
    front.refusal = WireError("another trainer is heard")
    with pytest.raises(WireError, match="another trainer"):
        await member(link).join()
    front.refusals = 1
    await member(link, retry_on=RhymedError).join()
    assert front.kinds() == ["Join"]


async def test_a_taken_name_is_asked_for_until_its_holder_would_be_lost(
    front: Front, link: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run's schedule, however long that is."""
    monkeypatch.setattr(worker_module, "NAME_PAUSE_S", 0.001)
    monkeypatch.setattr(worker_module, "NAME_MARGIN_S", 0.0)
    front.refusal, front.refusals = NameTaken(f"{NAME} is the name of a worker on there"), 5
    with pytest.raises(NameTaken):
        await member(link, lost_after_s=0.0).join()
    await member(link, lost_after_s=600.0).join()
    assert (front.kinds(), front.refusals) == (["Join"], 0)


async def test_only_a_member_that_was_not_dismissed_says_leave(front: Front, link: Client) -> None:
    stranger, dismissed, leaving = member(link), member(link), member(link)
    await stranger.leave(NAME)
    await dismissed.join()
    dismissed.dismissed()
    await dismissed.leave(NAME)
    assert front.kinds() == ["Join"]
    await leaving.join()
    await leaving.leave(NAME)
    await leaving.leave(NAME)
    assert front.kinds() == ["Join", "Join", "Leave"]


async def test_heartbeats_carry_what_the_process_uses(front: Front, link: Client) -> None:
    devices = Devices(FakeNvml(Device("GPU-aa11")), "0")
    running = asyncio.ensure_future(member(link, usage=UsageMeter(devices, every_s=0.01)).run())

    def newest() -> messages.Usage | None:
        return getattr(front.received[-1], "usage", None) if front.received else None

    await until(lambda: newest() is not None)
    usage = newest()
    assert usage is not None
    assert usage.memory > 1 << 20
    assert [gpu.index for gpu in usage.gpus] == [0]
    running.cancel()


async def test_heartbeats_say_what_the_process_waits_for(
    front: Front, link: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "PATIENT_S", 0.0)
    monkeypatch.setattr(retry.WAITS, "_open", {})  # not what a test before left behind
    waiting = retry.WAITS.begin("reading prompts", "the store is away")
    running = asyncio.create_task(member(link).run())
    try:
        await until(lambda: front.received and getattr(front.received[-1], "waits", ""))
        assert front.received[-1].waits.endswith(": reading prompts (the store is away)")
    finally:
        retry.WAITS.end(waiting)
        running.cancel()
