"""The learner without a model: equal samples, equal bits; anything else, other bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from rhymed.core.config import Config
from rhymed.core.errors import CheckpointError, StalenessBroken, TrainerError
from rhymed.core.messages import SampleId, SampleInfo
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.trainer.trace import SLICE_S, TraceLearner

CONFIG = Config.model_validate(
    {"rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}, "trace": {"train_s": 0.0}}
)


def samples(step: int, count: int = 8, *, version: int | None = None) -> list[StoredSample]:
    made = []
    for place in range(count):
        draw = np.random.default_rng([step, place])
        length = int(draw.integers(1, 20))
        info = SampleInfo(
            id=SampleId(step, f"{place // 4:016x}", place % 4),
            prompt_length=3,
            length=length,
            finish_reason="stop",
            versions=[(step if version is None else version, length)],
            reward=float(draw.random()),
        )
        made.append(StoredSample(info, draw.integers(0, 1 << 16, length).astype(np.uint32)))
    return made


def trained(*steps: Sequence[StoredSample]) -> TraceLearner:
    learner = TraceLearner(CONFIG.trace, CONFIG.schedule)
    for step in steps:
        learner.train(step)
    return learner


def with_reward(sample: StoredSample, reward: float | None) -> StoredSample:
    return StoredSample(msgspec.structs.replace(sample.info, reward=reward), sample.tokens)


def test_equal_samples_give_equal_bits_in_any_order() -> None:
    first = trained(samples(0), samples(1))
    second = trained(samples(0)[::-1], samples(1)[3:] + samples(1)[:3])
    assert first.digest() == second.digest()
    assert first.steps == second.steps == 2
    assert first.digest() != trained(samples(0)).digest() != TraceLearner(CONFIG.trace, CONFIG.schedule).digest()


def test_samples_that_begin_early_take_their_time_once_and_change_no_bit() -> None:
    config = Config.model_validate(CONFIG.model_dump() | {"trace": {"train_s": 0.2}})
    given = samples(0)
    learner = TraceLearner(config.trace, config.schedule, len(given))
    waits = []

    def progress(done: int, total: int) -> None:
        if done == total:
            waits.append(total)

    learner.begin(1, given, progress)
    assert not waits, "another step"
    half = len(given) // 2
    learner.begin(0, given[:half], progress)
    learner.begin(0, given[:4], progress)
    learner.train(given, progress)
    slices = 0.2 / SLICE_S
    assert waits == [round(slices * half / len(given)), 1, round(slices * (1 - half / len(given)))]
    assert learner.digest() == trained(samples(0)).digest()


def test_log_probs_and_versions_do_not_count() -> None:
    stale = Config.model_validate(CONFIG.model_dump() | {"schedule": {"max_staleness": 1}})
    learner = TraceLearner(stale.trace, stale.schedule)
    learner.train(samples(0))
    learner.train(samples(1, version=0))
    assert learner.digest() == trained(samples(0), samples(1)).digest()


def changed_token(given: list[StoredSample]) -> list[StoredSample]:
    tokens = given[5].tokens.copy()
    tokens[-1] ^= 1
    return [*given[:5], StoredSample(given[5].info, tokens), *given[6:]]


CHANGES = {
    "a sample is missing": lambda given: given[:-1],
    "a sample comes twice": lambda given: [*given, given[0]],
    "the last token of one is another": changed_token,
    "a reward is another": lambda given: [with_reward(given[0], 0.25), *given[1:]],
    "a reward is missing": lambda given: [with_reward(given[0], None), *given[1:]],
    "it is the sample of another place": lambda given: [
        StoredSample(msgspec.structs.replace(given[0].info, id=SampleId(0, "f" * 16, 0)), given[0].tokens),
        *given[1:],
    ],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_whatever_is_different_is_seen_for_ever(change) -> None:
    calm, other = trained(samples(0)), trained(change(samples(0)))
    for step in (1, 2, 3):
        assert calm.digest() != other.digest()
        calm.train(samples(step))
        other.train(samples(step))
    assert calm.digest() != other.digest()


def test_a_checkpoint_holds_all_that_decides_the_next_steps(tmp_path: Path) -> None:
    learner = trained(samples(0), samples(1))
    learner.save(tmp_path)
    again = TraceLearner.restore(CONFIG.trace, CONFIG.schedule, tmp_path)
    assert (again.steps, again.digest()) == (2, learner.digest())
    learner.train(samples(2))
    again.train(samples(2))
    assert again.digest() == learner.digest()
    assert again.digest() == trained(samples(0), samples(1), samples(2)).digest()


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.state", "trainer.json"])
def test_a_checkpoint_that_is_not_ours_is_refused(tmp_path: Path, file: str) -> None:
    trained(samples(0)).save(tmp_path)
    (tmp_path / file).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"not a checkpoint of trainer\.engine = trace"):
        TraceLearner.restore(CONFIG.trace, CONFIG.schedule, tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        TraceLearner.restore(CONFIG.trace, CONFIG.schedule, tmp_path)


def test_the_staleness_contract_is_kept_here_as_well() -> None:
    learner = trained(samples(0))
    with pytest.raises(StalenessBroken, match="versions 0 to 0; step 2"):
        learner.train(samples(1, version=0))
    assert learner.steps == 1


def test_an_interrupted_step_leaves_no_trace() -> None:
    learner = trained(samples(0))
    before = learner.digest()

    def stop(done: int, total: int) -> None:
        raise TrainerError("stopped")

    with pytest.raises(TrainerError):
        learner.train(samples(1), stop)
    assert (learner.steps, learner.digest()) == (1, before)
    learner.train(samples(1))
    assert learner.digest() == trained(samples(0), samples(1)).digest()


def test_it_publishes_what_it_learnt_without_torch(tmp_path: Path) -> None:
    learner = trained(samples(0))
    publisher = Publisher(tmp_path, learner.dtype)
    try:
        found = load_file(publisher.publish(1, learner.tensors().items()).path)
        assert found.keys() == {"weights"}
        assert np.array_equal(found["weights"], learner.tensors()["weights"])
    finally:
        publisher.close()


def test_other_numbers_than_are_published_are_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, "bfloat16")
    try:
        with pytest.raises(TrainerError, match="weights is float32, and bfloat16 is published"):
            publisher.publish(0, TraceLearner(CONFIG.trace, CONFIG.schedule).tensors().items())
    finally:
        publisher.close()
