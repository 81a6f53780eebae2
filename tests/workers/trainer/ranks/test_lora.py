"""Several ranks train the adapter that one trains, and write the same folder. Real processes over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainer.ranks.forked import Job, train
from tests.workers.trainer.ranks.test_ranks import config, furthest, untimed, weights

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytestmark = pytest.mark.slow

LORA = {"rank": 3, "alpha": 8}  # of four ranks, one has no row of A
SETTINGS = "adapter_config.json"


def adapted(model: Path, dtype: str = "float32", **trainer: Any) -> dict[str, Any]:
    return config(model, dtype, **{"lora": LORA, "lr": 1e-3, **trainer})


def about(folder: str) -> dict[str, str]:
    from rhymed_workers.lora.folder import metadata

    return dict(metadata(Path(folder) / "adapter_model.safetensors"))


@pytest.mark.thorough
def test_two_ranks_train_the_adapter_of_one_and_each_goes_on_from_the_other(tiny_model: Path, tmp_path: Path) -> None:
    given = adapted(tiny_model, kl_coef=0.1, warmup_steps=0)
    start = f"{tmp_path}/early"
    one, two, early, after = train(
        [
            Job(1, given, f"{tmp_path}/one", last=2),
            Job(2, given, f"{tmp_path}/two", last=2),
            Job(2, given, start, last=1),
            Job(1, given, f"{tmp_path}/after", start=start, first=1, last=2),
        ]
    )
    assert furthest(weights(one.out), weights(early.out)) > 1e-4, "it was trained"
    assert furthest(weights(one.out), weights(two.out)) < 1e-6
    assert furthest(weights(one.out), weights(after.out)) < 1e-6
    assert furthest(torch.load(f"{two.out}/published.pt"), weights(two.out)) == 0, "adapters are published"
    assert (Path(one.out) / SETTINGS).read_bytes() == (Path(two.out) / SETTINGS).read_bytes()
    assert about(one.out) == about(two.out)
    assert not list(Path(two.out).glob("model*")), "the frozen model is not written"
    for mine, other in zip(one.metrics, two.metrics, strict=True):
        assert untimed(other) == pytest.approx(untimed(mine), rel=1e-4, abs=1e-6)


def trained(weights: dict[str, Any]) -> bool:
    return max(float(tensor.abs().max()) for name, tensor in weights.items() if ".lora_B." in name) > 1e-3


@pytest.mark.thorough
def test_one_two_and_four_ranks_have_the_same_adapter_after_ten_steps(tiny_model: Path, tmp_path: Path) -> None:
    jobs = train([Job(ranks, adapted(tiny_model), f"{tmp_path}/{ranks}", last=10) for ranks in (1, 2, 4)])
    one, two, four = (weights(job.out) for job in jobs)
    assert trained(one)
    assert furthest(one, two) < 1e-6
    assert furthest(one, four) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given",
    [
        {"kl_coef": 0.1, "minibatches": 2},
        {"gradient_checkpointing": True},
        {"algorithm": "ppo"},
        {"lora": {**LORA, "targets": ["model.layers.1.self_attn.q_proj", "down_proj"]}},
    ],
)
def test_two_ranks_have_the_adapter_of_one_after_three_steps(
    tiny_model: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    jobs = train([Job(ranks, adapted(tiny_model, **given), f"{tmp_path}/{ranks}", last=3) for ranks in (1, 2)])
    one, two = (weights(job.out) for job in jobs)
    assert trained(one)
    assert furthest(one, two) < 1e-6


@pytest.mark.thorough
def test_a_resume_with_as_many_ranks_has_the_same_bits_and_others_the_same_adapter(
    tiny_model: Path, tmp_path: Path
) -> None:
    given = adapted(tiny_model, kl_coef=0.1)
    jobs = [Job(ranks, given, f"{tmp_path}/{ranks}", last=4) for ranks in (1, 4)]
    jobs += [Job(ranks, given, f"{tmp_path}/early-{ranks}", last=2) for ranks in (1, 4)]
    for early, ranks in ((1, 4), (4, 1), (4, 2), (4, 4)):
        start = f"{tmp_path}/early-{early}"
        jobs.append(Job(ranks, given, f"{tmp_path}/{early}-{ranks}", start=start, first=2, last=4))
    one, four, _, _, *others, same = train(jobs)
    for other in (four, *others):
        assert furthest(weights(one.out), weights(other.out)) < 1e-6
    assert furthest(weights(same.out), weights(four.out)) == 0


@pytest.mark.thorough
def test_frozen_layers_are_bfloat16_and_adapters_float32(tiny_model: Path, tmp_path: Path) -> None:
    given = adapted(tiny_model, "bfloat16", kl_coef=0.1)
    one, two = train([Job(ranks, given, f"{tmp_path}/{ranks}", last=3) for ranks in (1, 2)])
    assert {tensor.dtype for tensor in weights(two.out).values()} == {torch.float32}
    for mine, other in zip(one.metrics, two.metrics, strict=True):
        assert other["actor/entropy"] == pytest.approx(mine["actor/entropy"], rel=1e-4)
        assert other["actor/grad_norm"] == pytest.approx(mine["actor/grad_norm"], rel=2e-2)
