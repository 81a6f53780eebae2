"""Packed sequences give the outputs and gradients of separate ones, in float64 (norms and rotations are float32)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.errors import TrainerError
from rhymed_workers.trainer.policy import mask as masks
from rhymed_workers.trainer.policy.backbone import prepare
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from tests.workers.trainer.policy.models import KINDS, build
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


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("gemma2", {"final_logit_softcapping": None}, "softcap"),
        ("gpt_oss", {"num_local_experts": 2}, "s_aux"),
        ("llama4_text", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ("bloom", {"n_head": 4}, "attention that transformers cannot exchange"),
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
    ],
)
def test_other_attention_is_refused(kind: str, changes: dict[str, Any], words: str) -> None:
    (batch,) = micro_batches(SAMPLES, range(len(SAMPLES)), 4096)
    with pytest.raises(TrainerError, match=f"cannot be trained: it .*{words}"):
        Policy(build(kind, **changes)).hidden(batch)


def test_a_window_that_only_the_configuration_knows_is_refused() -> None:
    (batch,) = micro_batches(SAMPLES, range(len(SAMPLES)), 4096)
    policy = Policy(build("llama"))
    policy.model.config.sliding_window = 5
    with pytest.raises(TrainerError, match="another window"):
        policy.hidden(batch)
