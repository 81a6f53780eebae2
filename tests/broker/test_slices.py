"""Long operations in slices: they do the same as at once, and nothing comes in between."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from rhymed.core.messages import Join, LengthRow, SampleInfo, Score
from rhymed_broker import slices
from rhymed_broker.forecast import Forecast
from rhymed_broker.ledger import dispatch, samples
from rhymed_broker.ledger.actions import Action, Assign, Load, Recall, ScoreSamples, Train
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.plan import Plan
from rhymed_broker.shell import turns as turns_module
from rhymed_broker.shell.turns import BATCH, Queue, Turns
from rhymed_broker.slices import Operation, Slices, sliced

Run = Callable[..., Any]


def at_once(operation: Any, *arguments: Any) -> Any:
    return operation(*arguments)


def in_slices(operation: Operation[..., Any], *arguments: Any) -> Any:
    parts = operation.slices(*arguments)
    count = 0
    while True:
        try:
            next(parts)
        except StopIteration as end:
            longest.append(count)
            return end.value
        count += 1


longest: list[int] = []


def play(run: Run, steps: int = 3) -> list[Action]:
    """A run of several groups on five workers; returns every action."""
    prompts = [f"{number:016x}" for number in range(24)]
    ledger = Ledger(forecast=Forecast(512))
    for name, role in {"r0": "rollout", "r1": "rollout", "r2": "rollout", "s": "reward"}.items():
        ledger.join(Join(role=role, worker=name, host="h", pid=1, slots=7, version=-1), 0.0)  # type: ignore[arg-type]
    ledger.join(Join(role="trainer", worker="t", host="h", pid=1, slots=1, version=0, weights="w"), 0.0)
    run(ledger.start, Plan(prompts, 12, 4, steps, steps), 0, [], 0.0)
    now, done, todo = 1.0, list[Action](), run(ledger.drain, 1.0)
    while todo:
        action, now = todo.pop(0), now + 0.5
        done.append(action)
        match action:
            case Load(worker, version):
                ledger.loaded(worker, version, now)
            case Assign(worker, ids, _):
                infos = [
                    SampleInfo(id=id, prompt_length=1, length=n, finish_reason="stop", versions=[(id.step, n)])
                    for id in ids
                    for n in [9 + int(id.prompt, 16) * 7 % 200 + id.index]
                ]
                ledger.generated(worker, infos, now)
            case ScoreSamples(worker, ids):
                ledger.scored(worker, [Score(id=id, reward=float(id.index)) for id in ids], now)
            case Recall(_, recalled):
                run(
                    ledger.remember,
                    {prompt: LengthRow(prompt=prompt, lengths=[(-1, 30)]) for prompt in recalled},
                )
            case Train(_, step, _, _):
                assert run(ledger.train_done, step, now) is not None
        for present in ledger.workers:
            present.seen = now
        run(ledger.tick, now)
        todo += run(ledger.drain, now)
    return done


def test_a_ledger_in_slices_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play(at_once)
    for module in (samples, dispatch):
        monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(dispatch, "GROUPS", 2)
    monkeypatch.setattr(slices.chunks, "__defaults__", (3,))
    longest.clear()
    assert play(in_slices) == whole
    assert sum(isinstance(action, Train) for action in whole) == 3
    assert max(longest) > 30, "a step of 48 samples opens in many slices"


class Owner:
    def __init__(self) -> None:
        self.log: list[str] = []

    @sliced
    def work(self, count: int) -> Slices[int]:
        for number in range(count):
            self.log.append(str(number))
            yield
        return count


async def test_who_needs_the_ledger_meanwhile_waits_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed_broker.shell.turns.TURN_S", 0.0)  # a slice a turn
    turns, owner = Turns(), Owner()

    async def long() -> int:
        async with turns:
            return await turns.run(owner.work.slices(5))

    async def short(name: str) -> None:
        async with turns:
            owner.log.append(name)

    async def bystander() -> None:
        for _ in range(3):
            owner.log.append("loop")
            await asyncio.sleep(0)

    results = await asyncio.gather(long(), short("a"), short("b"), bystander())
    assert results[0] == 5
    assert [entry for entry in owner.log if entry != "loop"] == ["0", "1", "2", "3", "4", "a", "b"]
    assert owner.log.index("loop") < owner.log.index("4"), "the event loop ran in between"


async def test_an_operation_whose_task_is_cancelled_is_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)
    turns, owner = Turns(), Owner()

    async def long() -> None:
        async with turns:
            await turns.run(owner.work.slices(5))

    task = asyncio.create_task(long())
    await asyncio.sleep(0)
    assert owner.log == ["0"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert owner.log == ["0", "1", "2", "3", "4"]
    assert not turns.locked()


class Circle:
    def __init__(self) -> None:
        self.self = self


async def test_circular_garbage_that_long_operations_hide_from_collections_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)
    turns, owner, gone = Turns(), Owner(), []
    gc.collect()
    gc.disable()
    try:
        weakref.finalize(Circle(), gone.append, True)
        gc.freeze()
        for _ in range(turns_module.THAW):
            assert not gone
            async with turns:
                await turns.run(owner.work.slices(turns_module.LONG_TURNS))
    finally:
        gc.enable()
        gc.unfreeze()
    assert gone


async def test_an_operation_that_fails_lets_the_next_one_in() -> None:
    turns = Turns()

    def broken() -> Slices[None]:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        async with turns:
            await turns.run(broken())
    assert not turns.locked()


async def test_orders_go_on_in_batches_and_in_their_order() -> None:
    given: list[int] = []
    queue = Queue[int](given.append)
    queue.put(list(range(2 * BATCH + 1)))
    assert len(given) == BATCH
    queue.put([-1])
    while len(given) < 2 * BATCH + 2:
        await asyncio.sleep(0)
    assert given == [*range(2 * BATCH + 1), -1]
