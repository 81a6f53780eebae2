"""Operations of a step against torch's own count, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhymed.check import arithmetic
from rhymed.check.arithmetic import Workload
from rhymed.check.devices import cost
from rhymed.check.devices.shape import Shape, shape_of
from rhymed.check.reward import Speed
from rhymed.config import Config
from rhymed.gpus.inventory import parse
from rhymed.gpus.peaks import peak_of
from tests.check.devices.test_devices import MODELS, check, rows


def load_of(config: Config) -> Workload:
    return arithmetic.workload(config.rollout, config.trainer, 64, config.rollout.max_prompt_length)


def tree(model: Path, **trainer: Any) -> Config:
    rollout = {"prompts_per_step": 1, "group_size": 2, "max_prompt_length": 32, "max_response_length": 96}
    return Config.model_validate(
        {"model": {"path": str(model)}, "rollout": rollout, "trainer": {"micro_tokens": 128, **trainer}}
    )


@pytest.mark.slow
def test_operations_are_those_that_torch_counts(tiny_model: Path) -> None:
    """Of one pass: forward and backward through all layers and the head. Attention is a small part here."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    shape, tokens = shape_of(tiny_model), 128
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, tokens, dtype=torch.long)).logits.sum().backward()
    forward = tokens * (shape.token_flops + shape.head_flops + shape.attention_flops(tokens))  # eager computes all
    assert counter.get_total_flops() == pytest.approx(3 * forward, rel=0.02)


def test_training_is_the_sum_of_its_passes(tiny_model: Path) -> None:
    shape = shape_of(tiny_model)

    def factor(**trainer: Any) -> float:
        made, plain = (
            cost.cost(config, shape, load_of(config)).training
            for config in (tree(tiny_model, **trainer), tree(tiny_model))
        )
        return 3 * made / plain

    assert factor() == pytest.approx(3)
    assert factor(gradient_checkpointing=True) == pytest.approx(4)
    assert factor(lora={}, lr=1e-4) == pytest.approx(2)
    assert factor(kl_coef=0.1) == pytest.approx(4)
    assert factor(algorithm="ppo") == pytest.approx(9), (
        "log-probs before the update, reference, and a critic with its values"
    )
    assert factor(algorithm="opsd", teacher={"system": "x"}) == pytest.approx(4)


def test_a_token_sees_its_prompt_and_its_own_response_alone(tiny_model: Path) -> None:
    """As the mask of the trainer has it. A row of two samples and one of a single sample."""
    shape, config = shape_of(tiny_model), tree(tiny_model)
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"group_size": 3})})
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"micro_tokens": 224})})
    load = load_of(config)
    rows = [(32, 96, 96), (32, 96)]
    assert (load.width, load.tokens) == (224, sum(map(sum, rows)))
    seen = sum(
        (start + at + 0.5)
        for row in rows
        for part, start in [(row[0], 0), *((response, 32) for response in row[1:])]
        for at in range(part)
    )
    assert load.seen == seen
    heads = 3 * config.rollout.max_response_length * shape.head_flops
    assert cost.cost(config, shape, load).training == pytest.approx(
        3 * (load.tokens * shape.token_flops + shape.attention_flops(1) * seen + heads)
    )


def test_only_the_experts_that_a_token_uses_compute() -> None:
    dense = Shape(64, 2, 4, 4, 16, 128, 1, 1000, True)
    mixture = replace(dense, experts=8, active=2)
    router = 2 * 2 * dense.hidden * 8
    expert = 2 * 2 * 3 * dense.hidden * dense.intermediate
    assert mixture.token_flops == dense.token_flops + expert + router
    assert mixture.parameters > 2 * dense.parameters


@pytest.mark.parametrize(
    ("text", "tera"),
    [
        ("8x H100 80GB", 989),
        ("1x NVIDIA H100 PCIe 80GB", 756),
        ("1x NVIDIA A100-SXM4-40GB 40GB", 312),
        ("1x RTX 4090 24GB", 165),
        ("1x NVIDIA L40S 48GB", 362),
        ("1x L4 24GB", 121),
    ],
)
def test_a_peak_is_found_by_the_name(text: str, tera: float) -> None:
    gpu = parse(text).kinds[0]
    peak = peak_of(gpu.kind, gpu.bytes)
    assert peak is not None
    assert peak.bfloat16 == tera * 1e12
    assert peak_of("L400") is None


def test_the_smaller_a100_has_the_smaller_bandwidth() -> None:
    bandwidths = []
    for text in ("A100 40GB", "A100 80GB"):
        gpu = parse(text).kinds[0]
        peak = peak_of(gpu.kind, gpu.bytes)
        assert peak is not None
        bandwidths.append(peak.memory)
    assert bandwidths == pytest.approx([1.555e12, 2.039e12])


def test_more_gpus_take_less_time_and_the_seconds_are_marked_as_an_estimate() -> None:
    made = [check("8x H100 80GB", trainer={"gpus": gpus}) for gpus in (2, 4)]
    spans = []
    for report, gpus in zip(made, (2, 4), strict=True):
        (section,) = (one for one in report.sections if one.title.startswith("cost of a step (an estimate"))
        assert [label for label, _ in section.rows] == ["training", "generation", "a step", "assumed"]
        assert "Not compared with a GPU" in rows(report)["assumed"]
        config = Config.model_validate({"model": {"path": "x", "train_dtype": "bfloat16"}, "trainer": {"gpus": gpus}})
        found = cost.cost(config, shape_of(MODELS / "qwen2.5-7b"), load_of(config))
        peak = peak_of("H100")
        assert peak is not None
        spans.append(cost.training_s(config, found, peak))
    assert spans[0] == pytest.approx([2 * seconds for seconds in spans[1]])
    assert spans[0][1] == pytest.approx(spans[0][0] * cost.TRAINING[1] / cost.TRAINING[0])


def test_a_gpu_without_a_known_peak_has_operations_alone() -> None:
    found = rows(check("8x X9 80GB", trainer={"gpus": 4}))
    assert found["seconds"] == "unknown: no published peak of X9 is in the table (rhymed/gpus/peaks.py)"
    assert "FLOP" in found["training"]
    assert "a step" not in found


def test_processors_are_measured_not_assumed(tiny_model: Path) -> None:
    config, shape = tree(tiny_model), shape_of(tiny_model)
    without = dict(cost.on_processors(config, shape, load_of(config), None).rows)
    assert set(without) == {"training", "generation"}
    assert "about" not in without["training"]
    with_speed = dict(cost.on_processors(config, shape, load_of(config), Speed(1000.0, 10.0)).rows)
    assert with_speed["training"].startswith("about ")
    assert with_speed["generation"].startswith("at most about 19 s: "), "192 tokens"
    assert "read 1,000 tokens" in with_speed["measured"]


def test_no_time_is_0_s() -> None:
    spans = [(0.1, 0.4), (0.4, 1.6), (1.2, 1.4), (100.0, 300.0)]
    assert [cost._span(span) for span in spans] == ["less than 1 s", "up to 2 s", "1 s", "100 s to 5 min"]
