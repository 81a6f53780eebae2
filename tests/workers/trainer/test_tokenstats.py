"""What a step computed of each token: the right numbers, no bit of the training changed, in the store after it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout
from rhymed_store.browse import Browse
from rhymed_store.client import StoreClient, StoredSample
from rhymed_store.codec.tokenstats import TokenStats, halves
from rhymed_store.database.tables import Reader
from rhymed_workers.trainer import statswriter
from rhymed_workers.trainer.algorithms.tokens import Tokens
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.ranks import ALONE
from rhymed_workers.trainer.service import TrainerService
from rhymed_workers.trainer.statswriter import Keeper, StepStats
from rhymed_workers.trainer.tokenstats import Taken
from tests.workers.trainer import test_learner as learners
from tests.workers.trainer import test_service as services
from tests.workers.trainer.test_learner import rewarded, samples, weights

learner = learners.learner
broker, config, put, where = services.broker, services.config, services.put, services.where


def direct(model: Any, sample: StoredSample) -> tuple[np.ndarray[Any, Any], ...]:
    """Log-probs and entropies of the response, sample by sample."""
    assert sample.prompt_tokens is not None
    tokens = np.concatenate([sample.prompt_tokens, sample.tokens]).astype(np.int64)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)[None]).logits[0, len(sample.prompt_tokens) - 1 : -1]
    every = logits.log_softmax(-1)
    logprobs = every.gather(1, torch.from_numpy(sample.tokens.astype(np.int64))[:, None])[:, 0]
    return logprobs.numpy(), -(every.exp() * every).sum(-1).numpy()


@pytest.mark.parametrize("settings", [{}, pytest.param({"algorithm": "gspo"}, marks=pytest.mark.thorough)])
def test_numbers_are_those_of_a_direct_computation(
    learner: Callable[..., TorchLearner], tiny_model: Path, settings: dict[str, Any]
) -> None:
    from transformers import AutoModelForCausalLM

    trained = learner(**{"algorithm": "dr_grpo", **settings})
    trained.takes_token_stats = True
    given = rewarded(samples(0), lambda info: 1.0 if info.id.prompt.endswith("1") else float(info.id.index))
    trained.train(given)
    found = {id: values for part in stats_of(trained).messages() for id, values in part.items()}
    with_signal = [sample for sample in given if not sample.info.id.prompt.endswith("1")]  # the others' group is flat
    assert set(found) == {sample.info.id for sample in with_signal}
    assert stats_of(trained).version == 0
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    for sample in with_signal:
        logprobs, entropies = direct(model, sample)
        values = found[sample.info.id].astype(np.float64)
        assert sample.logprobs is not None
        np.testing.assert_allclose(values[0], logprobs, rtol=1e-3)
        np.testing.assert_allclose(values[1], entropies, rtol=1e-3)
        np.testing.assert_allclose(values[2], logprobs - sample.logprobs, rtol=1e-3, atol=1e-5)
        if "algorithm" not in settings:  # reward minus the group's mean
            np.testing.assert_allclose(values[3], sample.info.id.index - 1.5, rtol=1e-3)


def stats_of(learner: TorchLearner) -> StepStats:
    assert learner.token_stats is not None
    return learner.token_stats


@pytest.mark.parametrize(
    "settings",
    [
        {"minibatches": 3, "kl_coef": 0.1},
        pytest.param({"algorithm": "gspo", "minibatches": 2}, marks=pytest.mark.thorough),
    ],
)
def test_training_is_the_same_to_the_bit(learner: Callable[..., TorchLearner], settings: dict[str, Any]) -> None:
    plain, taking = learner(**settings), learner(**settings)
    taking.takes_token_stats = True
    for step in range(3):
        metrics = [learners.untimed(each.train(samples(step))) for each in (plain, taking)]
        assert metrics[0] == metrics[1]
        assert plain.token_stats is None
        assert stats_of(taking).version == step
    assert learners.equal(weights(plain), weights(taking))


def test_a_step_without_a_signal_has_none(learner: Callable[..., TorchLearner]) -> None:
    trained = learner()
    trained.takes_token_stats = True
    trained.train(samples(0))
    trained.train(rewarded(samples(1), lambda info: 1.0))
    assert list(stats_of(trained).messages()) == []
    trained.train(rewarded(samples(2), lambda info: None))
    assert trained.token_stats is None


def test_demonstrations_have_no_mismatch() -> None:
    given = samples(0)[:1]
    count = given[0].info.length
    taken, numbers_N, every_N = Taken(count, torch.device("cpu")), torch.linspace(-1, 0, count), torch.arange(count)
    tokens = Tokens(numbers_N, numbers_N, numbers_N, numbers_N, torch.zeros(count), torch.tensor([count]))
    taken.add(tokens, numbers_N, every_N, sampled=False)
    values = taken.of(0, given, ALONE).values
    assert np.isnan(values[2]).all()
    for row in (0, 1, 3):
        np.testing.assert_array_equal(values[row], halves(numbers_N))


def test_a_long_step_is_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statswriter, "MESSAGE_TOKENS", 10)
    ids, lengths = [messages.SampleId(0, f"{n:016x}", 0) for n in range(5)], [4, 6, 1, 0, 30]
    values = np.arange(4 * 41, dtype=np.float16).reshape(4, 41)
    values[0, 10] = np.nan  # the loss has not seen the third
    parts = list(StepStats(0, ids, lengths, values).messages())
    assert [list(part) for part in parts] == [ids[:2], ids[4:]]
    np.testing.assert_array_equal(parts[1][ids[4]], values[:, 11:])


async def test_a_trained_steps_tokens_are_in_the_store(
    config: Config, where: RunLayout, broker: services.Broker, put: Callable[..., Any], tmp_path: Path
) -> None:
    async with TrainerService(config, where).running():
        await broker.hear(messages.Join)
        for step in range(2):
            ids = await put(step)
            await broker.ask(messages.TrainStep(step=step, samples=ids))
            await broker.hear(messages.Trained, step=step)
        await broker.ask(messages.Finish(reason="done"))
        await broker.hear(messages.Leave)
    for step in range(2):
        found = read(where, tmp_path / f"copy{step}", step)
        assert len(found) == 8
        assert all(one is not None and one.version == step for one in found)
        assert all(one is not None and np.isfinite(one.values).all() for one in found)


async def test_a_training_that_is_repeated_leaves_no_numbers_of_the_first_one(
    where: RunLayout, put: Callable[..., Any], tmp_path: Path
) -> None:
    """Steps 1 and 2 are trained again, step 1 without numbers: a keeper takes one step at a time."""
    store = StoreClient(where.store, "trainer")
    steps = [await put(step) for step in range(3)]

    async def train(*given: StepStats | int) -> None:
        keeper = Keeper(store, asyncio.ensure_future)
        for one in given:
            keeper.keep(*((one, None) if isinstance(one, int) else (one.version, one)))
            await keeper.written(60)

    await train(*[await _stats(store, step, ids) for step, ids in enumerate(steps)])
    await train(1, await _stats(store, 2, steps[2][:1]))
    store.close()
    kept = [sum(one is not None for one in read(where, tmp_path / f"copy{step}", step)) for step in range(3)]
    assert kept == [8, 0, 1]


async def _stats(store: StoreClient, step: int, ids: list[messages.SampleId]) -> StepStats:
    lengths = [sample.info.length for sample in await store.get_samples(ids)]
    return StepStats(step, ids, lengths, np.zeros((4, sum(lengths)), np.float16))


def read(where: RunLayout, copy: Path, step: int) -> list[TokenStats | None]:
    """From a copy: the store has the folder open in this process."""
    ids = [messages.SampleId(step, f"{prompt:016x}", index) for prompt in range(2) for index in range(4)]
    with Reader(shutil.copytree(where.database, copy)) as reader:
        return Browse(reader).token_stats(ids)


async def test_a_store_without_room_for_them_is_no_error(
    config: Config, where: RunLayout, broker: services.Broker, put: Callable[..., Any], tmp_path: Path
) -> None:
    off = config.model_copy(update={"store": config.store.model_copy(update={"token_stats_gib": 0.0})})
    async with TrainerService(off, where).running():
        await broker.hear(messages.Join)
        await broker.ask(messages.TrainStep(step=0, samples=await put(0)))
        await broker.hear(messages.Trained, step=0)
    assert set(read(where, tmp_path / "copy", 0)) == {None}
