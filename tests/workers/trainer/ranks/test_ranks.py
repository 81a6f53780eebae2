"""Several ranks train what one trains, and continue from each other's checkpoints. Real processes over gloo."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainer.policy.models import build
from tests.workers.trainer.ranks.forked import Job, train

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def config(model: Path, dtype: str = "float32", **trainer: Any) -> dict[str, Any]:
    given = {"lr": 1e-4, "warmup_steps": 3, "weight_decay": 0.01, "micro_tokens": 40, "device": "cpu", **trainer}
    return {
        "model": {"path": str(model), "dtype": "float32", "train_dtype": dtype},
        "trainer": given,
        "rollout": {"prompts_per_step": 3, "group_size": 4, "max_prompt_length": 64, "max_response_length": 64},
    }


def weights(folder: str | Path) -> dict[str, Any]:
    """Of a model or an adapter."""
    from safetensors.torch import load_file

    (file,) = Path(folder).glob("*.safetensors")
    return load_file(file)


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.startswith(("timing", "perf"))}


def test_two_ranks_train_what_one_does_and_one_goes_on_from_two(tiny_model: Path, tmp_path: Path) -> None:
    given = config(tiny_model, kl_coef=0.1, warmup_steps=0)
    one, two, _, after = train(
        [
            Job(1, given, f"{tmp_path}/one", last=2),
            Job(2, given, f"{tmp_path}/two", last=2),
            Job(2, given, f"{tmp_path}/early", last=1),
            Job(1, given, f"{tmp_path}/after", start=f"{tmp_path}/early", first=1, last=2),
        ]
    )
    assert furthest(weights(one.out), weights(tiny_model)) > 1e-4, "it was trained"
    assert furthest(weights(one.out), weights(two.out)) < 1e-6
    assert furthest(weights(one.out), weights(after.out)) < 1e-6
    assert furthest(torch.load(f"{two.out}/published.pt"), weights(two.out)) == 0
    for mine, other in zip(one.metrics, two.metrics, strict=True):
        assert untimed(other) == pytest.approx(untimed(mine), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("micro_tokens", [40, pytest.param(4096, marks=pytest.mark.thorough)])
# Several passes a group, or one for two ranks.
def test_groups_that_are_computed_early_are_the_same_on_each_number_of_ranks(
    tiny_model: Path, tmp_path: Path, micro_tokens: int
) -> None:
    given = config(tiny_model, kl_coef=0.1, warmup_steps=0, overlap=True, micro_tokens=micro_tokens)
    one, two, early = train(
        [
            Job(1, given, f"{tmp_path}/one", last=2, begin=4),
            Job(2, given, f"{tmp_path}/two", last=2),
            Job(2, given, f"{tmp_path}/early", last=2, begin=4),
        ]
    )
    assert furthest(weights(one.out), weights(tiny_model)) > 1e-4, "it was trained"
    assert furthest(weights(one.out), weights(two.out)) < 1e-6
    assert furthest(weights(two.out), weights(early.out)) == 0
    for mine, other, third in zip(one.metrics, two.metrics, early.metrics, strict=True):
        assert (
            0
            == other.pop("actor/overlap_ratio")
            < third.pop("actor/overlap_ratio")
            == mine.pop("actor/overlap_ratio")
        )
        assert untimed(other) == pytest.approx(untimed(mine), rel=1e-4, abs=1e-6)
        assert untimed(other) == untimed(third)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given",
    [
        {"kl_coef": 0.1, "minibatches": 2},
        {"algorithm": "ppo", "minibatches": 2},
        {"entropy_coef": 0.02, "minibatches": 2},
    ],
)
def test_each_number_of_ranks_goes_on_from_the_checkpoints_of_others(
    tiny_model: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    settings = config(tiny_model, **given)
    jobs = [Job(ranks, settings, f"{tmp_path}/{ranks}", last=4) for ranks in (1, 2)]
    jobs += [Job(ranks, settings, f"{tmp_path}/early-{ranks}", last=2) for ranks in (1, 2)]
    for early, ranks in ((1, 2), (2, 1), (2, 4), (2, 2)):
        start = f"{tmp_path}/early-{early}"
        jobs.append(Job(ranks, settings, f"{tmp_path}/{early}-{ranks}", start=start, first=2, last=4))
    one, two, _, _, *others, same = train(jobs)
    for other in (two, *others):
        assert furthest(weights(one.out), weights(other.out)) < 1e-6
        for mine, theirs in zip(one.metrics[::-1], other.metrics[::-1], strict=False):
            assert untimed(theirs) == pytest.approx(untimed(mine), rel=1e-3, abs=1e-6)
    assert furthest(weights(same.out), weights(two.out)) == 0, "the same bits as without the stop"
    assert [untimed(step) for step in same.metrics] == [untimed(step) for step in two.metrics[2:]]


@pytest.mark.thorough
def test_one_two_and_four_ranks_have_the_same_weights_after_ten_steps(tiny_model: Path, tmp_path: Path) -> None:
    jobs = train([Job(ranks, config(tiny_model), f"{tmp_path}/{ranks}", last=10) for ranks in (1, 2, 4)])
    one, two, four = (weights(job.out) for job in jobs)
    assert furthest(one, weights(tiny_model)) > 1e-4, "they were trained"
    assert furthest(one, two) < 1e-6
    assert furthest(one, four) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given", [{"algorithm": "gspo", "minibatches": 2}, {"gradient_checkpointing": True}, {"algorithm": "ppo"}]
)
def test_two_ranks_have_the_weights_of_one_after_three_steps(
    tiny_model: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    jobs = train([Job(ranks, config(tiny_model, **given), f"{tmp_path}/{ranks}", last=3) for ranks in (1, 2)])
    one, two = (weights(job.out) for job in jobs)
    assert furthest(one, weights(tiny_model)) > 1e-4, "they were trained"
    assert furthest(one, two) < 1e-6


@pytest.mark.thorough
def test_bfloat16_computes_the_same_loss_from_float32_weights(tiny_model: Path, tmp_path: Path) -> None:
    given = config(tiny_model, "bfloat16")
    one, two = train([Job(ranks, given, f"{tmp_path}/{ranks}", last=2) for ranks in (1, 2)])
    for mine, other in zip(one.metrics, two.metrics, strict=True):
        assert other["actor/entropy"] == pytest.approx(mine["actor/entropy"], rel=1e-4)
        assert other["actor/grad_norm"] == pytest.approx(mine["actor/grad_norm"], rel=2e-2)
    assert {tensor.dtype for tensor in weights(two.out).values()} == {torch.float32}


@pytest.mark.thorough
def test_other_architectures_are_sharded_and_saved_under_their_names(tiny_model: Path, tmp_path: Path) -> None:
    """Tied heads, windows, experts whose tensors transformers merges when it loads, and none of Llama's names; soft
    caps, sinks and states, which are not packed."""
    jobs = []
    for kind in ("qwen3", "gemma3_text", "mixtral", "gpt_neox", "gemma2", "gpt_oss", "lfm2", "falcon_h1"):
        folder = tmp_path / kind
        build(kind, vocab_size=264, bos_token_id=None, eos_token_id=1, pad_token_id=0).float().save_pretrained(folder)
        for file in tiny_model.glob("tokenizer*"):
            shutil.copy(file, folder)
        jobs += [Job(ranks, config(folder), f"{tmp_path}/{kind}-{ranks}", last=2) for ranks in (1, 2)]
    done = train(jobs)
    for one, two in zip(done[::2], done[1::2], strict=True):
        assert furthest(weights(one.out), weights(one.config["model"]["path"])) > 1e-5, "it was trained"
        assert furthest(weights(one.out), weights(two.out)) < 1e-6
