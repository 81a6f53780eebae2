from __future__ import annotations

import dataclasses
import functools
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rhymed.core.algorithms import ALGORITHMS
from rhymed.core.config import Config
from rhymed.core.errors import CheckpointError, StalenessBroken
from rhymed.core.messages import SampleId, SampleInfo
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.batch import assemble
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.policy import Policy

PROMPTS, GROUP = 3, 4


def samples(step: int, seed: int = 0, version: int | None = None) -> list[StoredSample]:
    """Whole groups with engine log-probs that are roughly those of a random model."""
    draw = np.random.default_rng([seed, step])
    found = []
    for prompt in range(PROMPTS):
        tokens = draw.integers(2, 250, 5 + prompt).astype(np.uint32)
        for index in range(GROUP):
            length = int(draw.integers(1, 12))
            info = SampleInfo(
                id=SampleId(step, f"{prompt:016x}", index),
                prompt_length=len(tokens),
                length=length,
                finish_reason="length" if index == 0 else "stop",
                versions=[(step if version is None else version, length)],
                reward=float(draw.integers(0, 3)),
            )
            response = draw.integers(2, 250, length).astype(np.uint32)
            logprobs = draw.normal(-5.5, 0.1, length).astype(np.float32)
            found.append(StoredSample(info, response, logprobs, tokens))
    return found


def changed(sample: StoredSample, **fields: Any) -> StoredSample:
    return dataclasses.replace(sample, info=msgspec.structs.replace(sample.info, **fields))


def rewarded(given: list[StoredSample], reward: Callable[[SampleInfo], float | None]) -> list[StoredSample]:
    return [changed(sample, reward=reward(sample.info)) for sample in given]


@pytest.fixture
def learner(tiny_model: Path) -> Callable[..., TorchLearner]:
    def make(folder: Path = tiny_model, **settings: Any) -> TorchLearner:
        trainer = {"lr": 1e-3, "warmup_steps": 3, "weight_decay": 0.01, "micro_tokens": 40, **settings}
        rollout = {"prompts_per_step": 3, "group_size": 4, "max_prompt_length": 16, "max_response_length": 16}
        config = Config.model_validate({"trainer": trainer, "rollout": rollout})
        reference = Policy.load(tiny_model) if config.trainer.recipe.kl_coef else None
        return TorchLearner(config, Policy.load(folder), reference, tiny_model)

    return make


def weights(learner: TorchLearner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.policy.model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


LIBRARY = pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="bitsandbytes is not installed")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"minibatches": 3, "kl_coef": 0.1, "aggregation": "token-mean"},
        {"schedule": "cosine", "steps": 5},
        {"algorithm": "gspo", "minibatches": 2, "off_policy_mask": 0.5},
        {"algorithm": "rloo", "minibatches": 2},
        {"algorithm": "reinforce++"},
        {"algorithm": "dapo"},
        {"entropy_coef": 0.02, "minibatches": 2},
        pytest.param({"optimizer": "adamw_8bit", "minibatches": 2}, marks=LIBRARY),
    ],
)
def test_two_and_two_steps_are_four_steps_to_the_bit(
    learner: Callable[..., TorchLearner], tiny_model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    straight = learner(**settings)
    expected = [straight.train(samples(step)) for step in range(4)]

    first = learner(**settings)
    for step in range(2):
        first.train(samples(step))
    first.save(tmp_path)
    torch.manual_seed(99)
    second = learner(tmp_path, **settings)
    second.load(tmp_path)
    assert second.steps == 2
    found = [second.train(samples(step)) for step in range(2, 4)]

    assert equal(weights(second), weights(straight))
    for mine, other in zip(found, expected[2:], strict=True):
        assert untimed(mine) == untimed(other)


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.startswith(("timing", "perf"))}


def test_an_entropy_bonus_raises_the_entropy_of_samples_without_a_signal(
    learner: Callable[..., TorchLearner],
) -> None:
    found = {}
    for coef in (-1.0, 0.0, 1.0):
        one = learner(entropy_coef=coef, warmup_steps=0, weight_decay=0.0)
        for step in range(3):
            found[coef] = one.train(rewarded(samples(step), lambda info: 1.0))
            assert (found[coef]["actor/tokens"] > 0) == bool(coef)
    assert "actor/entropy" not in found[0.0]
    assert found[-1.0]["actor/entropy"] < found[1.0]["actor/entropy"]


def test_each_scorer_is_normalised_before_the_sum(tiny_model: Path) -> None:
    """A scorer of rare, small rewards teaches as much as one of large ones."""
    config = Config.model_validate({"trainer": {"algorithm": "gdpo"}})
    given = [
        dataclasses.replace(one, parts={"large": 1e3 * (at % 2), "small": 1e-2 * (at // 2 % 2), "large/part": 9.0})
        for at, one in enumerate(samples(0)[:GROUP])
    ]
    given = [changed(one, reward=one.parts["large"] + one.parts["small"]) for one in given]
    none = lambda batches, total: torch.zeros(total)  # noqa: E731
    batch = assemble(given, config.trainer, 16, none, scorers={"large": 1.0, "small": 1.0})
    firsts = [int(at) for at in batch.lengths_B.cumsum(0) - batch.lengths_B]
    assert batch.advantages_N[firsts].tolist() == pytest.approx([-1.2247, 0.0, 0.0, 1.2247], abs=0.02)


def test_a_checkpoint_is_a_folder_that_transformers_reads(
    learner: Callable[..., TorchLearner], tiny_model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = learner()
    trained.train(samples(0))
    trained.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert equal(dict(model.state_dict()), weights(trained))
    assert AutoTokenizer.from_pretrained(tmp_path).encode("abc") == AutoTokenizer.from_pretrained(tiny_model).encode(
        "abc"
    )


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("kind", ["whole", "shards", "critic", "lora"])
def test_a_checkpoint_can_be_written_again_and_names_its_files(
    kind: str, copy: bool, tiny_model: Path, tmp_path: Path
) -> None:
    """As after a full disk. `save_pretrained` may empty the dict that it is given: a checkpoint without the model was
    then taken for a whole one."""
    trainer = {"critic": {"algorithm": "ppo"}, "lora": {"lora": {"rank": 2}}}.get(kind, {})
    rollout = {"prompts_per_step": 3, "group_size": 4, "max_prompt_length": 16, "max_response_length": 16}
    config = Config.model_validate({"model": {"path": str(tiny_model)}, "trainer": trainer, "rollout": rollout})
    trained = TorchLearner.restore(config, None)
    trained.train(samples(0))
    model = trained.policy.model
    saved = functools.partial(model.save_pretrained, max_shard_size=20_000 if kind == "shards" else "5GB")

    def save_pretrained(folder: Path, state_dict: dict[str, torch.Tensor]) -> None:
        saved(folder, state_dict=state_dict)
        state_dict.clear()

    model.save_pretrained = save_pretrained
    folder = tmp_path / "made"
    finish = trained.snapshot(folder, copy=copy)
    written = []
    for _ in range(2):
        folder.mkdir()
        names = finish()
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
        shutil.rmtree(folder)
    assert written[0] == written[1]
    assert set(names) == set(written[0])
    assert (sum(name.endswith(".safetensors") for name in names) > 1) == (kind == "shards")


def test_a_policy_is_saved_into_a_folder_that_is_not_there(tiny_model: Path, tmp_path: Path) -> None:
    Policy.load(tiny_model).save(tmp_path / "new" / "model")
    assert (tmp_path / "new" / "model" / "config.json").is_file()


def test_what_is_no_checkpoint_is_refused(learner: Callable[..., TorchLearner], tiny_model: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        learner().load(tiny_model)


def test_micro_batches_do_not_change_the_step(learner: Callable[..., TorchLearner]) -> None:
    one, many = learner(micro_tokens=4096), learner(micro_tokens=1)
    first, second = one.train(samples(0)), many.train(samples(0))
    assert first["actor/grad_norm"] == pytest.approx(second["actor/grad_norm"], rel=1e-4)
    assert first["actor/loss"] == pytest.approx(second["actor/loss"], abs=1e-6)
    assert first["actor/entropy"] == pytest.approx(second["actor/entropy"], rel=1e-5)


def test_mini_batches_of_unequal_tokens_are_means_of_their_own(learner: Callable[..., TorchLearner]) -> None:
    """The second half has responses of other lengths: how either half is cut into micro-batches does not show."""
    given = samples(0)
    half = PROMPTS * GROUP // 2
    given = given[:half] + [
        dataclasses.replace(
            changed(sample, length=1, versions=[(0, 1)]), tokens=sample.tokens[:1], logprobs=sample.logprobs[:1]
        )
        for sample in given[half:]
    ]
    one, many = (learner(micro_tokens=size, minibatches=2) for size in (4096, 1))
    first, second = one.train(given), many.train(given)
    assert first["actor/grad_norm"] == pytest.approx(second["actor/grad_norm"], rel=1e-4)
    for name, tensor in weights(one).items():
        assert torch.allclose(tensor, weights(many)[name], atol=2e-5), name


def test_the_learning_rate_follows_the_schedule_of_the_run(learner: Callable[..., TorchLearner]) -> None:
    made = learner(schedule="linear", warmup_steps=1, min_lr_ratio=0.5)
    rates = [made.train(samples(step), run_steps=5)["actor/lr"] for step in range(5)]
    assert rates == pytest.approx([1e-3, 1e-3, 0.875e-3, 0.75e-3, 0.625e-3])


def test_metrics_say_what_was_trained(learner: Callable[..., TorchLearner]) -> None:
    given = samples(0)
    found = learner(kl_coef=0.1).train(given)
    lengths = [sample.info.length for sample in given]
    assert found["reward/mean"] == pytest.approx(np.mean([sample.info.reward for sample in given]))
    assert found["response_length/mean"] == pytest.approx(np.mean(lengths))
    assert found["response_length/max"] == max(lengths)
    assert found["response_length/clip_ratio"] == 0.25
    assert found["actor/tokens"] == sum(lengths)
    assert found["actor/kl"] == pytest.approx(0, abs=1e-6)  # the first step starts at the reference
    assert found["actor/lr"] == pytest.approx(1e-3 / 3)
    assert 5 < found["actor/entropy"] < np.log(264)
    assert 0 <= found["mismatch_kl/mean"] < 1
    assert found["staleness/max"] == 0
    assert found["actor/grad_norm"] > 0


def test_equal_rewards_change_nothing(learner: Callable[..., TorchLearner]) -> None:
    made = learner(weight_decay=0.0)
    before = weights(made)
    found = made.train(rewarded(samples(0), lambda info: 0.1))
    assert equal(weights(made), before)
    assert found["actor/grad_norm"] == 0
    assert "actor/entropy" not in found  # nothing was computed, so nothing is claimed
    assert made.steps == 1


def test_the_mismatch_is_watched_also_when_nothing_is_trained(
    learner: Callable[..., TorchLearner], caplog: pytest.LogCaptureFixture
) -> None:
    same = rewarded(samples(0), lambda info: 1.0)
    assert 0 <= learner().train(same)["mismatch_kl/mean"] < 0.05
    shifted = [dataclasses.replace(sample, logprobs=sample.logprobs + np.float32(1)) for sample in same]
    assert learner().train(shifted)["mismatch_kl/mean"] > 0.3
    assert "above trainer.mismatch_warn" in caplog.text


def test_what_has_no_signal_is_not_computed_and_changes_nothing(learner: Callable[..., TorchLearner]) -> None:
    """Skipping samples of advantage 0 must not show: a vanishing KL term makes the learner compute all of them."""
    flat = rewarded(samples(0), lambda info: 1.0 if info.id.prompt.endswith("1") else float(info.id.index))
    lean, full = learner(), learner(kl_coef=1e-30)
    assert lean.train(flat)["actor/tokens"] < full.train(flat)["actor/tokens"]
    for name, tensor in weights(lean).items():
        assert torch.allclose(tensor, weights(full)[name], atol=2e-5), name


def test_a_step_of_flat_groups_says_so(learner: Callable[..., TorchLearner]) -> None:
    found = learner().train(rewarded(samples(0), lambda info: 1.0))
    assert (found["reward/flat_groups"], found["actor/groups_unscored"], found["actor/tokens"]) == (1.0, 0.0, 0.0)


def test_groups_with_less_than_two_rewards_are_left_out_and_counted(learner: Callable[..., TorchLearner]) -> None:
    def reward(info: SampleInfo) -> float | None:
        missing = info.id.prompt.endswith("0") and info.id.index > 0
        return (None, float("nan"))[info.id.index % 2] if missing else float(info.id.index)

    found = learner().train(rewarded(samples(0), reward))
    assert found["actor/groups_unscored"] == 1
    assert found["actor/samples"] == 2 * GROUP


@pytest.mark.parametrize("given", [[], rewarded(samples(0), lambda info: None)])
def test_a_step_without_anything_to_train_is_a_step(
    learner: Callable[..., TorchLearner], given: list[StoredSample]
) -> None:
    made = learner()
    before = weights(made)
    found = made.train(given)
    assert made.steps == 1
    assert found["actor/tokens"] == 0
    assert "actor/entropy" not in found  # a mean over no tokens
    assert equal(weights(made), before)


def _with_tokens(sample: StoredSample, prompt: list[int], response: list[int]) -> StoredSample:
    one = changed(sample, prompt_length=len(prompt), length=len(response), versions=[(0, len(response))])
    arrays = np.asarray(response, np.uint32), np.zeros(len(response), np.float32), np.asarray(prompt, np.uint32)
    return dataclasses.replace(one, tokens=arrays[0], logprobs=arrays[1], prompt_tokens=arrays[2])


@pytest.mark.parametrize(
    ("prompt", "response", "why"),
    [
        ([5], [7, (1 << 32) - 1], "has token 4294967295, the model has 264"),
        ([264], [7], "has token 264, the model has 264"),
        ([], [7], "has 0 tokens of prompt and 1 of response"),
        ([5] * 17, [7], "has 17 tokens of prompt"),
        ([5], [7] * 17, "17 of response, allowed are 1 to 16 and at most 16"),
    ],
)
def test_a_sample_that_the_model_cannot_read_is_left_out(
    learner: Callable[..., TorchLearner],
    prompt: list[int],
    response: list[int],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever has a key of the role rollout can write one, and it would end the trainer at every attempt."""
    made, fine = learner(), samples(0)
    fine[2] = _with_tokens(fine[2], [263] * 16, [263] * 16)
    wrong = _with_tokens(fine[1], prompt, response)
    kept = made.allowed(0, [fine[0], wrong, *fine[2:]])
    assert kept == [fine[0], *fine[2:]]
    assert why in caplog.text
    assert made.train(kept)["actor/samples"] == len(fine) - 1


def test_what_is_not_finite_does_not_reach_the_weights(
    learner: Callable[..., TorchLearner], caplog: pytest.LogCaptureFixture
) -> None:
    made = learner(advantage_scale="none")
    before = weights(made)
    found = made.train(rewarded(samples(0), lambda info: 1e38 if info.id.index else -1e38))
    assert equal(weights(made), before)
    assert found["actor/skipped_updates"] == 1
    assert "this update is skipped" in caplog.text
    made.train(samples(1))
    assert not equal(weights(made), before)


def test_stale_samples_are_refused(learner: Callable[..., TorchLearner]) -> None:
    made = learner()
    made.steps = 2
    with pytest.raises(StalenessBroken, match=r"versions 1 to 1; step 3 .*max_staleness = 0"):
        made.train(samples(2, version=1))
    with pytest.raises(StalenessBroken, match="versions 3 to 3"):
        made.train(samples(2, version=3))
    assert made.allowed(2, samples(2, version=3)) == []
    fine = samples(2, version=2)
    assert made.allowed(2, [*fine, *samples(2, version=1)]) == fine
    assert made.steps == 2


def cut_samples(folder: Path) -> list[StoredSample]:
    """Of step 0, as an engine writes them that draws from the tokens down to the one that it draws; one of each
    group draws from all."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), []
    for sample in samples(0):
        prompt, response = (np.asarray(part, np.int64) for part in (sample.prompt_tokens, sample.tokens))
        with torch.no_grad():
            logits_NV = model(torch.from_numpy(np.concatenate([prompt, response]))[None]).logits[0]
        logp_NV = logits_NV[len(prompt) - 1 : -1].double().log_softmax(-1)
        logp_N = logp_NV.gather(1, torch.from_numpy(response)[:, None])
        floor_N = (logp_N + logp_NV.where(logp_NV < logp_N, -torch.inf).amax(-1, keepdim=True)) / 2
        floor_N = floor_N if sample.info.id.index else torch.full_like(floor_N, -torch.inf)
        said_N = logp_N - logp_NV.where(logp_NV >= floor_N, -torch.inf).logsumexp(-1, keepdim=True)
        said, floors = (each[:, 0].float().numpy() for each in (said_N, floor_N))
        found.append(dataclasses.replace(sample, logprobs=said, floors=floors))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"minibatches": 3, "kl_coef": 0.1},
        {"minibatches": 2, "algorithm": "gspo", "correction": "sequence-mask"},
        {"overlap": True, "correction": "geometric"},
    ],
)
def test_a_trainer_knows_the_tokens_that_were_left_to_draw_from(
    learner: Callable[..., TorchLearner], tiny_model: Path, settings: dict[str, Any]
) -> None:
    given = cut_samples(tiny_model)
    metrics = learner(**settings).train(given)
    assert metrics["mismatch_kl/mean"] < 1e-10
    assert metrics.get("actor/rejected", 0.0) == 0
    assert metrics["actor/grad_norm"] > 0
    if "kl_coef" in settings:  # to the reference's among all: that of the first update is the share that is kept
        assert metrics["actor/kl"] > 0.1
    unknown = learner(**settings).train([dataclasses.replace(sample, floors=None) for sample in given])
    assert unknown["mismatch_kl/mean"] > 0.1
    assert unknown["actor/entropy"] > metrics["actor/entropy"]


REWARDED = [name for name, recipe in ALGORITHMS.items() if recipe.advantage not in ("gae", "none")]


@pytest.mark.parametrize("algorithm", REWARDED)
def test_learning_raises_the_probability_of_what_is_rewarded(
    learner: Callable[..., TorchLearner], algorithm: str
) -> None:
    """With two updates per step, so that ratios differ from 1."""
    rare = {"overlong_filter": False} if algorithm == "dapo" else {}  # the rewarded samples here were cut
    made = learner(warmup_steps=0, algorithm=algorithm, minibatches=2, **rare)
    given = rewarded(samples(0), lambda info: float(info.id.index == 0))

    def likelihood() -> float:
        from rhymed_workers.trainer.policy.packing import Sequences, micro_batches

        good = [Sequences(s.prompt_tokens, s.tokens) for s in given if s.info.reward]  # type: ignore[arg-type]
        batches = micro_batches(good, range(len(good)), 4096)
        return float(sum(made.policy.logprobs(batch).sum() for batch in batches))

    before = likelihood()
    for step in range(4):
        made.train([changed(sample, versions=[(step, sample.info.length)]) for sample in given])
    assert likelihood() > before + 1
