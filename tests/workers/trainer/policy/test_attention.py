"""Packed sequences give the outputs and gradients of separate ones, in float64 (norms and rotations are float32)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.check.memory import KEPT_SCORES
from rhymed.core.errors import TrainerError
from rhymed_workers.trainer.policy import mask as masks
from rhymed_workers.trainer.policy.backbone import prepare
from rhymed_workers.trainer.policy.grades import Grade, grade_of
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from tests.packages import PLACES, on
from tests.workers.trainer.policy.models import KINDS, OTHERS, build
from tests.workers.trainer.policy.samples import drawn

SAMPLES = drawn([5, 17, 1], [9, 20, 3, 1, 31, 2, 12, 26]) + drawn([5, 1], [4, 20, 3, 30], 1, common=20)


def separate(model: Any, samples: list[Sequences], temperature: float) -> Tensor:
    """(N,) log-probs by transformers' own attention, one sequence after the other."""
    found = []
    for prompt, response, *_ in samples:
        ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
        logp = (model(ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
        found.append(logp.gather(1, ids[0, len(prompt) :, None]).squeeze(1))
    return torch.cat(found)


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize(("chunk", "alone", "micro_tokens"), [(512, 64, 4096), (8, 64, 60), (8, 2, 4096)])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_packed_sequences_are_separate(
    kind: str, chunk: int, alone: int, micro_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "CHUNK", chunk)
    monkeypatch.setattr(masks, "ALONE", alone)
    model = build(kind)
    if kind == "mixtral":  # torch's product of experts knows no float64
        model.float()
    dtype, tolerance = model.dtype, 1e-7 if model.dtype == torch.float64 else 1e-4
    slopes_N = torch.linspace(-1, 1, sum(len(sample.response) for sample in SAMPLES), dtype=dtype)
    expected_N = separate(model.eval(), SAMPLES, 0.7)
    (slopes_N * expected_N.exp()).sum().backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)

    policy = Policy(model, 0.7, dtype)
    found_N = torch.full_like(expected_N, torch.nan)
    for batch in micro_batches(SAMPLES, range(len(SAMPLES)), micro_tokens):
        found_N[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch)
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: (slopes_N[flat_N] * logp_N.exp()).sum())
    assert torch.allclose(found_N, expected_N, atol=tolerance)
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.allclose(found[name], expected[name], atol=tolerance), name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("place", PLACES)
def test_every_device_computes_what_a_processor_does_in_float64(
    place: str, kind: str, dtype: torch.dtype, tolerance: float
) -> None:
    """By the kernels of the device and the type: on a GPU FlexAttention in float32, flash attention in bfloat16."""
    device = on(place)
    samples = drawn([5, 170, 1], [9, 150, 3, 40, 200, 12]) + drawn([7, 30], [60, 3, 90, 20], 1, common=60)

    def computed(policy: Policy) -> tuple[Tensor, Tensor]:
        """Log-probs and gradient of all samples."""
        logp_N = torch.zeros(sum(len(sample.response) for sample in samples), dtype=torch.float64)
        for batch in micro_batches(samples, range(len(samples)), 600):
            logp_N[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch).cpu().double()
            policy.backward(batch, lambda logp_N, entropy_N, flat_N: (logp_N.exp() * (1 + flat_N % 3)).sum())
        return logp_N, torch.cat([made.flatten().cpu().double() for made in gradients(policy.model).values()])

    def model() -> Any:
        made = build(kind, head_dim=16, hidden_size=64)
        with torch.no_grad():
            for weight in made.parameters():
                weight.mul_(4 if weight.ndim == 2 else 1)  # what it says depends on what it was told
        return made

    expected = computed(Policy(model(), 0.7, torch.float64))
    found = computed(Policy(model().float().to(device), 0.7, dtype))
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm() / other.norm()) < tolerance


def test_checkpointing_changes_no_bit() -> None:
    (batch,) = micro_batches(SAMPLES, range(len(SAMPLES)), 4096)
    plain, sparing = (Policy(prepare(build("llama").float(), checkpointing=flag)) for flag in (False, True))
    for policy in (plain, sparing):
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: logp_N.sum())
    one, other = gradients(plain.model), gradients(sparing.model)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert set(one) == set(other)


def kept_bytes(policy: Policy, batch: MicroBatch) -> int:
    """Of what the forward pass keeps for the gradient."""
    kept = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.hidden(batch)
    return sum(kept)


def test_checkpointing_keeps_only_the_inputs_of_layers() -> None:
    (batch,) = micro_batches(SAMPLES, range(len(SAMPLES)), 4096)
    made = (Policy(prepare(build("llama", num_hidden_layers=6), checkpointing=flag)) for flag in (False, True))
    plain, sparing = (kept_bytes(policy, batch) for policy in made)
    assert sparing < plain / 3


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_no_more_scores_are_kept_than_check_counts(kind: str) -> None:
    """Of attention that makes them all: a square for each head and layer."""
    layers, heads, width = 3, 4, 48
    policy = Policy(build(kind, num_hidden_layers=layers, num_attention_heads=heads, layer_types=None).float())
    (batch,) = micro_batches(drawn([8], [40]), range(1), 4096, grade=policy.grade)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.ndim >= 3 and tensor.shape[-2] == width <= tensor.shape[-1] <= width + 1:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.hidden(batch)
    copy = layers * heads * width * width * 4
    assert copy <= sum(kept.values()) <= KEPT_SCORES * copy * (width + 1) / width


def test_bfloat16_computes_in_16_bits_and_keeps_32() -> None:
    (batch,) = micro_batches(SAMPLES, range(len(SAMPLES)), 4096)
    exact, rounded = Policy(build("llama").float()), Policy(build("llama").float(), dtype=torch.bfloat16)
    seen = []
    rounded.model.model.layers[0].mlp.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    for policy in (exact, rounded):
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: logp_N.sum())
    assert seen == [torch.bfloat16]
    one, other = exact.logprobs(batch), rounded.logprobs(batch)
    assert one.dtype == other.dtype == torch.float32
    assert 0 < float((one - other).abs().max()) < 0.1
    for name, gradient in gradients(rounded.model).items():
        assert gradient.dtype == torch.float32
        expected = gradients(exact.model)[name]
        assert torch.nn.functional.cosine_similarity(gradient.ravel(), expected.ravel(), 0) > 0.99, name


IN_ROWS = {"gemma2", "gpt_oss", "llama4_text", "bloom"}


def other(kind: str) -> Any:
    """A model that cannot be packed, with the attention that its authors wrote. It is sure of what it says."""
    model = build(kind).float().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.ndim > 1 else 1)
    return model


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_a_model_is_packed_if_its_attention_can_be_exchanged(kind: str) -> None:
    with torch.device("meta"):
        model = build(kind)
    expected = Grade.PACKED if kind in KINDS else Grade.ROWS if kind in IN_ROWS else Grade.ALONE
    assert grade_of(model) is expected


@pytest.mark.parametrize("kind", sorted(OTHERS))
def test_models_that_cannot_be_packed_compute_sequences_as_they_do_themselves(kind: str) -> None:
    """In their grade, and also if a teacher or a critic gets what was packed for another model."""
    model = other(kind)
    slopes_N = torch.linspace(-1, 1, sum(len(sample.response) for sample in SAMPLES))
    expected_N = separate(model, SAMPLES, 0.7)
    (slopes_N * expected_N.exp()).sum().backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    policy = Policy(model, 0.7)
    for grade in (policy.grade, Grade.PACKED):
        found_N = torch.full_like(expected_N, torch.nan)
        for batch in micro_batches(SAMPLES, range(len(SAMPLES)), 140, grade=grade):
            assert grade is not Grade.ALONE or len(batch.sequences) == 1
            found_N[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch)
            policy.backward(batch, lambda logp_N, entropy_N, flat_N: (slopes_N[flat_N] * logp_N.exp()).sum())
        assert torch.allclose(found_N, expected_N, atol=1e-4)
        found = gradients(model)
        assert found.keys() == expected.keys()
        for name in expected:
            scale = float(expected[name].abs().max())
            assert torch.allclose(found[name], expected[name], atol=1e-4 * scale + 1e-6), (grade, name)
        model.zero_grad(set_to_none=True)


@pytest.mark.parametrize("kind", ["llama", *OTHERS])
def test_a_gradient_does_not_depend_on_the_neighbours(kind: str) -> None:
    """Of the third sequence, between others of the same lengths: with one of them alone it is not in the batch."""
    policy = Policy(build(kind).float() if kind == "llama" else other(kind), 0.7)

    def of_third(samples: list[Sequences]) -> tuple[Tensor, dict[str, Tensor]]:
        first = sum(len(sample.response) for sample in samples[:2])
        mine = torch.arange(first, first + len(samples[2].response))
        logp = torch.zeros(len(mine))
        for batch in micro_batches(samples, range(len(samples)), 4096, grade=policy.grade):
            inside = np.isin(batch.flat_N, mine.numpy())
            logp[torch.from_numpy(batch.flat_N[inside]) - first] = policy.logprobs(batch)[torch.from_numpy(inside)]
            policy.backward(batch, lambda logp_N, _, flat_N: (logp_N.exp() * torch.isin(flat_N, mine)).sum())
        found = gradients(policy.model)
        policy.model.zero_grad(set_to_none=True)
        return logp, found

    others = [Sequences(5 + sample.prompt % 50, 5 + sample.response % 50) for sample in SAMPLES[:5]]
    others[2] = SAMPLES[2]
    (one_N, one), (other_N, another) = of_third(SAMPLES[:5]), of_third(others)
    assert torch.allclose(one_N, other_N, atol=1e-5)
    for name in one.keys() & another.keys():  # an expert that nobody chose has none
        scale = float(one[name].abs().max())
        assert torch.allclose(one[name], another[name], atol=1e-5 * scale + 1e-7), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["full_attention", "window_attention"]}, "layers of an unknown kind, window_attention"),
        ({"use_bidirectional_attention": True}, "attention in both directions"),
    ],
)
def test_a_model_that_no_grade_takes_is_refused(changes: dict[str, Any], words: str) -> None:
    model = build("gemma3_text")
    for name, value in changes.items():
        setattr(model.config, name, value)
    with pytest.raises(TrainerError, match=f"Gemma3ForCausalLM cannot be trained: it has {words}"):
        Policy(model)


def test_a_window_that_only_the_configuration_knows_is_refused() -> None:
    (batch,) = micro_batches(SAMPLES, range(len(SAMPLES)), 4096)
    policy = Policy(build("llama"))
    policy.model.config.sliding_window = 5
    with pytest.raises(TrainerError, match="another window"):
        policy.hidden(batch)
