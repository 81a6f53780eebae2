"""The trainer's service through real sockets, with a real store; the broker is a server that notes what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from rhymed.core import messages
from rhymed.core.config import Config, Lora
from rhymed.core.errors import (
    CheckpointError,
    CheckpointLost,
    DiskFull,
    PeerGone,
    TrainerError,
    UnknownSample,
    Unstartable,
)
from rhymed.core.run import checkpoint
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.service import retry
from rhymed.core.service.stopwatch import ACTIVITIES, seconds_of
from rhymed.core.wire.sockets import DONE, Client, Server
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.service import StoreService
from rhymed_workers.trainer import lineage, saving
from rhymed_workers.trainer import service as trainer_service
from rhymed_workers.trainer.service import TrainerService
from tests.disks import fill, small_disk
from tests.workers.peers import until

WAIT_S = 60.0


class Broker:
    """Welcomes whoever joins and remembers everything."""

    def __init__(self, address: str) -> None:
        self.heard: list[Any] = []
        self.peer = b""
        self.joined = asyncio.Event()
        self._news = asyncio.Event()
        self.server = Server(address, messages.ToBroker, self._handle)

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        self.heard.append(message)
        self._news.set()
        if isinstance(message, messages.Join):
            self.peer = peer
            self.joined.set()
            return messages.Welcome(run="t", heartbeat_s=0.1, lost_after_s=5, step=message.version)
        if not self.peer:
            raise PeerGone("not known here: join first")
        return DONE

    async def hear(self, kind: type[Any], **fields: Any) -> Any:
        """The first message of this kind with these fields, past or to come."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for message in self.heard:
                    if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                        return message
                self._news.clear()
                await self._news.wait()

    async def ask(self, message: messages.Message) -> None:
        await asyncio.wait_for(self.joined.wait(), WAIT_S)
        await self.server.request(self.peer, message, deadline_s=WAIT_S)


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"folder": str(tmp_path), "name": "t"},
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "rollout": {"prompts_per_step": 2, "group_size": 4, "max_prompt_length": 64, "max_response_length": 64},
            "trainer": {"lr": 1e-3, "checkpoint_every": 2, "threads": 1},
            "store": {"map_gib": 0.05},
            "net": {name: f"ipc://{tmp_path}/{name}" for name in ("broker", "store", "weights")},
        }
    )


@pytest.fixture
def where(config: Config) -> RunLayout:
    return layout_of(config)


@pytest.fixture
async def broker(where: RunLayout) -> AsyncIterator[Broker]:
    made = Broker(where.broker)
    yield made
    made.server.close()


@pytest.fixture
async def put(config: Config, where: RunLayout) -> AsyncIterator[Callable[..., Any]]:
    """A store that runs, and a way to put a scored step into it."""
    async with StoreService(config.store, where).running():
        client = StoreClient(where.store, "test")

        async def put_step(step: int, version: int | None = None) -> list[messages.SampleId]:
            draw = np.random.default_rng(step)
            made = []
            for prompt in range(2):
                tokens = draw.integers(2, 250, 5)
                for index in range(4):
                    length = int(draw.integers(1, 9))
                    info = messages.SampleInfo(
                        id=messages.SampleId(step, f"{prompt:016x}", index),
                        prompt_length=5,
                        length=length,
                        finish_reason="stop",
                        versions=[(step if version is None else version, length)],
                    )
                    response = draw.integers(2, 250, length)
                    made.append(NewSample(info, tokens, response, np.full(length, -5.5, np.float32)))
            await client.put_samples(made)
            ids = [sample.info.id for sample in made]
            await client.put_scores([messages.Score(id=id, reward=float(id.index)) for id in ids])
            return ids

        yield put_step
        client.close()


async def published(where: RunLayout, version: int) -> dict[str, Any]:
    link = Client(where.weights, peer="weights")
    try:
        manifest = (await link.request(messages.GetManifest(version=version), deadline_s=WAIT_S)).message
        return load_file(manifest.path)
    finally:
        link.close()


async def written(where: RunLayout, step: int) -> None:
    """The checkpoint of so many steps is there, whole."""
    async with asyncio.timeout(WAIT_S):
        while not (where.checkpoints / f"step-{step:06d}").exists():
            await asyncio.sleep(0.02)


async def test_a_step_is_trained_published_reported_and_checkpointed(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    began = time.monotonic()
    async with TrainerService(config, where).running():
        join = await broker.hear(messages.Join)
        assert (join.role, join.version, join.weights) == ("trainer", 0, where.weights)
        before = await published(where, 0)
        for step in range(2):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            trained = await broker.hear(messages.Trained, step=step)
            assert trained.metrics["reward/mean"] == 1.5
            assert trained.metrics.keys() >= {
                *("reward/std", "actor/loss", "actor/entropy", "actor/grad_norm", "actor/lr", "actor/pg_clipfrac"),
                *("mismatch_kl/mean", "staleness/max", "perf/train_tokens_per_s", "response_length/clip_ratio"),
                *("timing_s/fetch", "timing_s/compute", "timing_s/publish"),
            }
        after = await published(where, 2)
        assert any((after[name] != before[name]).any() for name in before)
        await broker.hear(messages.Checkpointed, step=2)
        beat = await broker.hear(messages.Heartbeat, version=2, phase="idle")
        seconds = seconds_of("trainer", beat.stats)
        assert tuple(seconds) == ACTIVITIES["trainer"]
        assert min(seconds.values()) > 0, "it has done all of it"
        assert sum(seconds.values()) <= time.monotonic() - began
        trained = [await broker.hear(messages.Trained, step=step) for step in range(2)]
        assert seconds["train"] >= sum(message.metrics["timing_s/compute"] for message in trained)
    assert (where.checkpoints / "step-000002" / "model.safetensors").exists()
    await broker.hear(messages.Leave)


async def test_the_runs_steps_come_from_the_broker(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    trainer = config.trainer.model_copy(update={"schedule": "linear"})
    async with TrainerService(config.model_copy(update={"trainer": trainer}), where).running():
        ids = await put(0)
        client = StoreClient(where.store, "reward")
        await client.put_scores([messages.Score(id=id, reward=float(id.index)) for id in ids])
        client.close()
        await broker.ask(messages.TrainStep(step=0, samples=ids, steps=4))
        first = (await broker.hear(messages.Trained, step=0)).metrics
        await broker.ask(messages.TrainStep(step=1, samples=await put(1), steps=4))
        second = (await broker.hear(messages.Trained, step=1)).metrics
    assert (first["actor/lr"], second["actor/lr"]) == (1e-3, pytest.approx(0.75e-3))


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
async def test_groups_that_come_early_are_a_part_of_the_step_to_the_bit(
    config: Config, where: RunLayout, broker: Broker, put: Any, lora: Lora | None
) -> None:
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"lora": lora, "overlap": True})})
    found = []
    for early in (False, True):
        folder = where.folder.parent / str(early)
        own = config.model_copy(update={"run": config.run.model_copy(update={"folder": str(folder)})})
        broker.joined.clear()
        broker.heard.clear()
        service = TrainerService(own, layout_of(own))
        async with service.running():
            for step in range(2):
                ids = await put(step)
                if early:
                    await broker.ask(messages.BeginGroups(step=step, samples=ids[4:]))
                    await until(lambda: service.work._learner._groups._parts)  # type: ignore[attr-defined]  # noqa: B023
                    await broker.ask(messages.BeginGroups(step=step, samples=ids[4:]))
                await broker.ask(messages.TrainStep(step=step, samples=ids))
                metrics = (await broker.hear(messages.Trained, step=step)).metrics
                assert (metrics["actor/overlap_ratio"] > 0) == early
                assert metrics["actor/overlap_ratio"] < 1
                await broker.ask(messages.BeginGroups(step=step, samples=ids))  # late
                broker.heard.clear()
            weights = await published(layout_of(own), 2)
            found.append({name: tensor.clone() for name, tensor in weights.items()})
    assert found[0].keys() == found[1].keys()
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


@pytest.mark.parametrize("copy", [True, False])
async def test_a_checkpoint_has_the_step_of_its_name_while_the_next_one_waits(
    config: Config, where: RunLayout, broker: Broker, put: Any, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    """The next step is here while the checkpoint waits for the one before it, or is written without a copy."""
    changes = {"checkpoint_every": 1, "async_checkpoints": copy}
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update=changes)})
    service = TrainerService(config, where)
    async with service.running():
        name = "free" if copy else "finish"
        usual = getattr(service.work.checkpoints, name)

        async def slowly(*arguments: Any) -> None:
            await broker.ask(messages.TrainStep(step=1, samples=await put(1)))
            with contextlib.suppress(TimeoutError):  # it should not be trained meanwhile
                async with asyncio.timeout(2):
                    await broker.hear(messages.Trained, step=1)
            await usual(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(service.work.checkpoints, name, slowly)
            await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
            await broker.hear(messages.Trained, step=0)
            await broker.hear(messages.Checkpointed, newest=1)
        saved, expected = (
            load_file(where.checkpoints / "step-000001" / "model.safetensors"),
            await published(where, 1),
        )
        assert json.loads((where.checkpoints / "step-000001" / "trainer.json").read_text())["steps"] == 1
        assert all((saved[name] == expected[name]).all() for name in expected)
        await broker.hear(messages.Trained, step=1)


async def test_groups_that_cannot_be_read_early_do_not_end_it(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"overlap": True})})
    async with TrainerService(config, where).running():
        await broker.ask(messages.BeginGroups(step=0, samples=[messages.SampleId(0, "f" * 16, 0)]))
        await broker.ask(messages.BeginGroups(step=7, samples=[]))
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        assert (await broker.hear(messages.Trained, step=0)).metrics["actor/overlap_ratio"] == 0


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
async def test_a_restarted_trainer_goes_on_to_the_bit_from_its_checkpoint(
    config: Config, where: RunLayout, broker: Broker, put: Any, lora: Lora | None
) -> None:
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"lora": lora})})
    async with TrainerService(config, where).running():
        for step in range(3):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        expected = await published(where, 3)
        assert all(".lora_" in name for name in expected) == bool(lora), "of a LoRA run only the adapters"
        await broker.hear(messages.Checkpointed, step=2)
    broker.heard.clear()
    async with TrainerService(config, where).running():
        assert (await broker.hear(messages.Join)).version == 2
        await broker.ask(messages.TrainStep(step=2, samples=await put(2)))
        await broker.hear(messages.Trained, step=2)
        found = await published(where, 3)
    assert all((found[name] == expected[name]).all() for name in expected)


async def test_finish_writes_the_last_checkpoint_and_leaves(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    service = TrainerService(config, where)
    async with service.running():
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        await broker.ask(messages.Finish(reason="enough"))  # while it trains
        await broker.hear(messages.Trained, step=0)
        await broker.hear(messages.Checkpointed, step=1)
        await broker.hear(messages.Leave)
    assert service.stopping


async def test_a_trained_step_is_answered_and_not_trained_again(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    async with TrainerService(config, where).running():
        order = messages.TrainStep(step=0, samples=await put(0))
        await broker.ask(order)
        await broker.ask(order)  # the broker did not hear the first answer
        first = await broker.hear(messages.Trained, step=0)
        weights = await published(where, 1)
        broker.heard.clear()
        await broker.ask(order)
        assert await broker.hear(messages.Trained, step=0) == first
        again = await published(where, 1)
        assert all((again[name] == weights[name]).all() for name in weights)
        with pytest.raises(TrainerError, match="step 6 cannot be trained: 1 are trained, 2 is next"):
            await broker.ask(messages.TrainStep(step=5, samples=[]))


async def test_what_is_unknown_is_refused_and_what_is_stale_left_out(
    config: Config, where: RunLayout, broker: Broker, put: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with TrainerService(config, where).running():
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        await broker.hear(messages.Trained, step=0)
        with pytest.raises(UnknownSample):
            await broker.ask(messages.TrainStep(step=1, samples=[messages.SampleId(1, "f" * 16, 0)]))
        broker.heard.clear()
        await broker.hear(messages.Heartbeat, phase="idle", version=1)
        stale = await put(1, version=0)
        await broker.ask(messages.TrainStep(step=1, samples=stale))
        trained = await broker.hear(messages.Trained, step=1)
        assert trained.metrics["actor/left_out"] == len(stale)
        assert "left out of training: sample 1/" in caplog.text


async def test_a_restarted_broker_is_joined_again_and_hears_what_it_missed(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    async with TrainerService(config, where).running():
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        broker.server.close()
        reborn = Broker(where.broker)
        try:
            assert (await reborn.hear(messages.Join)).role == "trainer"
            assert (await reborn.hear(messages.Trained)).step == 0
        finally:
            reborn.server.close()


async def test_a_model_that_cannot_be_loaded_ends_the_trainer_as_one_that_did_not_start(
    config: Config, where: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restored(*_: Any) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr("rhymed_workers.trainer.service.restore", restored)
    with pytest.raises(Unstartable, match="cannot be loaded for training: Found no NVIDIA driver"):
        await TrainerService(config, where).run()


async def test_a_damaged_checkpoint_is_not_the_end(
    config: Config, where: RunLayout, broker: Broker, put: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with TrainerService(config, where).running():
        for step in range(4):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        await written(where, 4)
    damage(where, 4)
    broker.heard.clear()
    async with TrainerService(config, where).running():
        assert (await broker.hear(messages.Join)).version == 2
    assert "step-000004 is damaged" in caplog.text


def damage(where: RunLayout, step: int) -> None:
    file = where.checkpoints / f"step-{step:06d}" / "optimizer.state"
    file.write_bytes(file.read_bytes()[:-100])


async def test_a_trainer_without_a_good_checkpoint_ends_in_words(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    async with TrainerService(config, where).running():
        for step in range(2):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        await broker.hear(messages.Checkpointed, step=2)
    damage(where, 2)
    with pytest.raises(CheckpointLost, match=r"step-000002.*put a good one back"):
        await TrainerService(config, where).run()


async def test_a_big_step_is_read_in_parts(
    config: Config, where: RunLayout, broker: Broker, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_service, "FETCHED", 3)
    service, asked = TrainerService(config, where), list[int]()
    async with service.running():
        whole = service.store.get_samples

        async def counted(ids: Any, **more: Any) -> Any:
            asked.append(len(ids))
            return await whole(ids, **more)

        service.store.get_samples = counted  # type: ignore[method-assign]
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        trained = await broker.hear(messages.Trained, step=0)
        assert trained.life == (await broker.hear(messages.Join)).life != ""
        assert trained.metrics["reward/mean"] == 1.5
    assert asked == [3, 3, 2]


async def test_at_the_end_it_says_that_the_last_checkpoint_is_there_already(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    async with TrainerService(config, where).running():
        for step in range(2):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        await broker.hear(messages.Checkpointed, newest=2)
        broker.heard.clear()  # as a broker that has started again
        await broker.ask(messages.Finish(reason="enough"))
        await broker.hear(messages.Checkpointed, newest=2)
        await broker.hear(messages.Leave)


async def test_what_the_step_after_an_older_checkpoint_needs_is_not_forgotten(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    """The store forgets log-probs below what the trainer tells; the oldest checkpoint that is kept must do."""
    store = StoreClient(where.store, "broker")
    try:
        async with TrainerService(config, where).running():
            for step in range(6):
                await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
                await broker.hear(messages.Trained, step=step)
                if step % 2:
                    await written(where, step + 1)
            last = (await broker.hear(messages.Checkpointed, step=4)).step
            expected = await published(where, 6)
        assert max(one.step for one in broker.heard if isinstance(one, messages.Checkpointed)) == last
        await store.forget_logprobs(last)
        damage(where, 6)
        broker.heard.clear()
        async with TrainerService(config, where).running():
            assert (await broker.hear(messages.Join)).version == 4
            for step in (4, 5):
                await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
                await broker.hear(messages.Trained, step=step)
            found = await published(where, 6)
        assert all((found[name] == expected[name]).all() for name in expected)
    finally:
        store.close()


async def test_being_stopped_in_the_middle_of_a_step_is_quick_and_loses_only_that_step(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"micro_tokens": 1})})
    async with TrainerService(config, where).running():
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
    assert not any(isinstance(message, messages.Checkpointed) for message in broker.heard)
    broker.heard.clear()
    async with TrainerService(config, where).running():
        assert (await broker.hear(messages.Join)).version == 0


@pytest.mark.parametrize("engine", ["torch", "trace"])
async def test_what_was_trained_is_written_down_and_a_step_trained_again_is_there_once(
    config: Config, where: RunLayout, broker: Broker, put: Any, engine: str
) -> None:
    rollout = {"engine": "trace"} if engine == "trace" else {}
    config = _changed(config, trainer={"engine": engine}, rollout=rollout, trace={"train_s": 0.0})
    async with TrainerService(config, where).running():
        for step in range(3):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        await broker.hear(messages.Checkpointed, step=2)
        expected = await published(where, 3)
    first = lineage.read(where.checkpoints / "step-000002")
    assert [(line.step, line.samples) for line in first] == [(0, 8), (1, 8)]
    broker.heard.clear()
    async with TrainerService(config, where).running():  # step 2 was lost, and is trained again
        assert (await broker.hear(messages.Join)).version == 2
        for step in (2, 3):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
            if step == 2:
                found = await published(where, 3)
        await written(where, 4)
    kept = lineage.read(where.checkpoints / "step-000004")
    assert kept[:2] == first
    assert [line.step for line in kept] == [0, 1, 2, 3]
    assert len({line.digest for line in kept}) == 4
    assert all(bool(line.weights) == (engine == "trace") for line in kept)
    assert all((found[name] == expected[name]).all() for name in expected)


async def test_a_checkpoint_of_the_other_engine_is_refused_in_words(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    async with TrainerService(config, where).running():
        for step in range(2):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        await broker.hear(messages.Checkpointed, step=2)
    other = _changed(config, trainer={"engine": "trace"}, rollout={"engine": "trace"})
    with pytest.raises(CheckpointError, match=r"not a checkpoint of trainer\.engine = trace"):
        await TrainerService(other, where).run()


async def test_a_trace_trainer_can_be_stopped_in_the_middle_of_a_long_step(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    slow = _changed(config, trainer={"engine": "trace"}, rollout={"engine": "trace"}, trace={"train_s": 1e6})
    async with TrainerService(slow, where).running():
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        async with asyncio.timeout(WAIT_S):
            while not any(
                isinstance(one, messages.Heartbeat) and one.phase.startswith("train ") for one in broker.heard
            ):
                await asyncio.sleep(0.05)
        broker.server.close()
        reborn = Broker(where.broker)
        try:
            assert (await reborn.hear(messages.Join)).training == 0, "its GPUs are in use"
            assert (await reborn.hear(messages.Heartbeat)).training == 0
        finally:
            reborn.server.close()
    assert (await broker.hear(messages.Join)).training == -1
    assert not any(isinstance(message, messages.Trained) for message in broker.heard)


async def test_a_trainer_that_gets_no_further_ends(
    config: Config, where: RunLayout, broker: Broker, put: Any
) -> None:
    stuck = _changed(config, trainer={"engine": "trace", "stall_s": 0.5}, rollout={"engine": "trace"})
    service, hung = TrainerService(stuck, where), threading.Event()
    life = asyncio.ensure_future(service.run())
    await broker.hear(messages.Join)
    service.work._learner.train = lambda samples, progress, run_steps: hung.wait(WAIT_S)  # type: ignore[method-assign]
    await asyncio.sleep(1.0)
    assert not life.done(), "one that has nothing to do is not stuck"
    await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
    with pytest.raises(TrainerError, match=r"no progress for 0\.5 s"):
        await asyncio.wait_for(life, WAIT_S)
    hung.set()


def _changed(config: Config, **sections: dict[str, Any]) -> Config:
    given = config.model_dump()
    return Config.model_validate(given | {name: given[name] | more for name, more in sections.items()})


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Checkpoints are written once it is set."""
    free, finish = threading.Event(), checkpoint.finish

    def slow(*given: Any) -> checkpoint.Checkpoint:
        assert free.wait(WAIT_S)
        return finish(*given)

    monkeypatch.setattr(checkpoint, "finish", slow)
    return free


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
async def test_the_next_step_is_trained_while_a_checkpoint_is_written_and_does_not_change_it(
    config: Config, where: RunLayout, broker: Broker, put: Any, disk: threading.Event, lora: Lora | None
) -> None:
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"lora": lora})})
    async with TrainerService(config, where).running():
        for step in range(2):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        expected = await published(where, 2)
        await broker.ask(messages.TrainStep(step=2, samples=await put(2)))
        await broker.hear(messages.Trained, step=2)
        assert not any(isinstance(message, messages.Checkpointed) for message in broker.heard)
        assert checkpoint.checkpoints_in(where.checkpoints) == [], "it has no name before all of it is written"
        await broker.ask(messages.Finish(reason="enough"))
        disk.set()
        await broker.hear(messages.Checkpointed, newest=2)
        await broker.hear(messages.Checkpointed, newest=3)
        await broker.hear(messages.Leave)
    (file,) = (where.checkpoints / "step-000002").glob("*.safetensors")
    found = load_file(file)
    assert all((found[name] == expected[name]).all() for name in expected)


async def test_a_trainer_that_ends_while_it_writes_leaves_the_checkpoint_before(
    config: Config, where: RunLayout, broker: Broker, put: Any, disk: threading.Event
) -> None:
    disk.set()
    async with TrainerService(config, where).running():
        for step in range(3):
            await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
            await broker.hear(messages.Trained, step=step)
        await broker.hear(messages.Checkpointed, newest=2)
        disk.clear()
        await broker.ask(messages.TrainStep(step=3, samples=await put(3)))
        await broker.hear(messages.Trained, step=3)
        await broker.hear(messages.Heartbeat, version=4, phase="idle")
        broker.heard.clear()
    try:
        async with TrainerService(config, where).running():
            assert (await broker.hear(messages.Join)).version == 2
    finally:
        disk.set()


async def test_what_is_written_of_a_checkpoint_is_progress_also_of_an_idle_trainer(
    config: Config, where: RunLayout, broker: Broker, put: Any, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a disk that hangs is a stall, and a slow one is not."""
    monkeypatch.setattr(saving, "MEASURE_S", 0.02)
    service = TrainerService(_changed(config, trainer={"checkpoint_every": 1}), where)
    async with service.running():
        assert service.work.progress() is None
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        await broker.hear(messages.Heartbeat, version=1, phase="idle")
        await until(lambda: service.work._idle.is_set())
        before = service.work.progress()
        assert before is not None
        (part,) = where.checkpoints.glob(f"{checkpoint.UNFINISHED}*")
        (part / "more").write_bytes(bytes(1000))
        await until(lambda: service.work.progress() != before)
        disk.set()
        await broker.hear(messages.Checkpointed, newest=1)
        await until(lambda: service.work.progress() is None)


async def test_a_checkpoint_waits_on_a_full_disk_while_the_next_step_is_trained(
    config: Config, where: RunLayout, broker: Broker, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "PATIENT_S", 0.0)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 0.5)
    trace = _changed(config, trainer={"engine": "trace"}, rollout={"engine": "trace"})
    with small_disk(where.checkpoints, "256k") as disk:
        filler = fill(disk, leave=1 << 12)
        async with TrainerService(trace, where).running():
            for step in range(3):
                await broker.ask(messages.TrainStep(step=step, samples=await put(step)))
                await broker.hear(messages.Trained, step=step)
            await until(lambda: any("the disk is full" in beat.waits for beat in _beats(broker)))
            assert not list(disk.glob("*/*")), "what was begun leaves its room to others"
            filler.unlink()
            await broker.hear(messages.Checkpointed, newest=2)
            await until(lambda: not _beats(broker)[-1].waits)
        assert checkpoint.newest(where.checkpoints) == (2, where.checkpoints / "step-000002")


async def test_a_disk_that_stays_full_ends_the_trainer_for_good(
    config: Config, where: RunLayout, broker: Broker, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "FULL_S", 1.0)
    trace = _changed(config, trainer={"engine": "trace", "checkpoint_every": 1}, rollout={"engine": "trace"})
    with small_disk(where.checkpoints, "256k") as disk:
        fill(disk, leave=1 << 12)
        running = asyncio.create_task(TrainerService(trace, where).run())
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        with pytest.raises(DiskFull, match=r"step-000001 cannot be written.*No space left.*free some space"):
            await asyncio.wait_for(running, WAIT_S)


def _beats(broker: Broker) -> list[messages.Heartbeat]:
    return [message for message in broker.heard if isinstance(message, messages.Heartbeat)]


async def test_without_a_copy_the_next_step_waits_for_the_checkpoint(
    config: Config, where: RunLayout, broker: Broker, put: Any, disk: threading.Event
) -> None:
    settings = config.trainer.model_copy(update={"async_checkpoints": False, "checkpoint_every": 1})
    async with TrainerService(config.model_copy(update={"trainer": settings}), where).running():
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        await broker.hear(messages.Trained, step=0)
        await broker.hear(messages.Heartbeat, version=1, phase="checkpoint")
        beats = [message for message in broker.heard if isinstance(message, messages.Heartbeat)]
        assert not [beat for beat in beats if (beat.version, beat.phase) == (1, "idle")]
        disk.set()
        await broker.hear(messages.Checkpointed, newest=1)
        await broker.hear(messages.Heartbeat, version=1, phase="idle")
