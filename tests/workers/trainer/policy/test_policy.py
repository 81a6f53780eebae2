from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.core.errors import TrainerError
from rhymed_workers.trainer.policy import head as heads
from rhymed_workers.trainer.policy.attention import NAME
from rhymed_workers.trainer.policy.packing import Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from tests.workers.trainer.policy.models import build


@pytest.fixture
def policy(tiny_model: Path) -> Policy:
    return Policy.load(tiny_model, temperature=0.8)


@pytest.fixture
def samples() -> list[Sequences]:
    draw = np.random.default_rng(0)
    prompts = [draw.integers(2, 250, length) for length in (5, 11)]
    return [
        Sequences(prompts[number % 2], draw.integers(2, 250, length))
        for number, length in enumerate([7, 1, 12, 3, 4])
    ]


def plain(policy: Policy, samples: list[Sequences]) -> list[Tensor]:
    """The obvious way: one sample at a time, with transformers' own attention. (tokens, vocabulary) each."""
    found = []
    policy.model.set_attn_implementation("sdpa")
    for prompt, response, *_ in samples:
        ids = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
        found.append((policy.model(ids).logits[0, len(prompt) - 1 : -1] / policy.temperature).log_softmax(-1))
    policy.model.set_attn_implementation(NAME)
    return found


def chosen(policy: Policy, samples: list[Sequences]) -> Tensor:
    """(N,) log-probs of all response tokens, with gradient."""
    target_N = torch.from_numpy(np.concatenate([sample.response for sample in samples]).astype(np.int64))
    return torch.cat(plain(policy, samples)).gather(1, target_N[:, None]).squeeze(1)


@pytest.mark.parametrize("micro_tokens", [8, 40, 4096])
def test_log_probs_are_those_of_single_rows(policy: Policy, samples: list[Sequences], micro_tokens: int) -> None:
    expected = chosen(policy, samples).detach()
    found = torch.full_like(expected, torch.nan)
    for batch in micro_batches(samples, range(5), micro_tokens):
        found[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("logits_bytes", [4 * 264 * 3, 1 << 28])
def test_gradient_written_by_hand_is_that_of_autograd(
    policy: Policy, samples: list[Sequences], logits_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "LOGITS_BYTES", logits_bytes)
    slopes = torch.linspace(-1, 1, 27)

    (slopes * chosen(policy, samples).exp()).sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in policy.model.named_parameters()}
    policy.model.zero_grad(set_to_none=True)
    for batch in micro_batches(samples, range(5), 64):
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: (slopes[flat_N] * logp_N.exp()).sum())

    for name, parameter in policy.model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6), name


def test_entropy_is_of_the_tempered_distribution(policy: Policy, samples: list[Sequences]) -> None:
    (logits,) = plain(policy, samples[:1])
    seen: list[Tensor] = []

    def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
        seen.append(entropy_N)
        return logp_N.sum()

    policy.backward(micro_batches(samples, [0], 100)[0], loss)
    assert torch.allclose(seen[0], torch.distributions.Categorical(logits=logits).entropy(), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("llama", {"output_multiplier": 2.0}, "output_multiplier"),
        ("hyperclovax", {"logits_scaling": 2.0}, "logits_scaling"),
        ("phi", {"num_key_value_heads": 4}, "an output head that is not a plain matrix"),
    ],
)
def test_a_head_that_does_what_is_not_known_is_refused(kind: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainerError, match=f"ForCausalLM cannot be trained: it has {words}"):
        Policy(build(kind, **changes))


HEADS: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 3.0},
    "granite": {"logits_scaling": 0.2},
    "gemma2": {"final_logit_softcapping": 0.5},
}


@pytest.mark.parametrize("slices", [1 << 28, 4 * 64 * 3])
@pytest.mark.parametrize("kind", sorted(HEADS))
def test_scaled_and_capped_logits_are_those_of_the_model(
    kind: str, slices: int, samples: list[Sequences], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their log-probs and entropies, and the gradients of both; and of a loss of whole distributions."""
    monkeypatch.setattr(heads, "LOGITS_BYTES", slices)
    model = build(kind, attn_implementation="eager", **HEADS[kind])
    given = [Sequences(sample.prompt % 64, sample.response % 64) for sample in samples]
    policy, slopes = Policy(model, 0.8, torch.float64), torch.linspace(-1, 1, 27, dtype=torch.float64)
    rows = [row for sample in given for row in full(policy, sample)]
    target_N = torch.from_numpy(np.concatenate([sample.response for sample in given]))
    logp_NV = torch.stack(rows)
    logp_N, entropy_N = logp_NV.gather(1, target_N[:, None]).squeeze(1), -(logp_NV.exp() * logp_NV).sum(1)
    for whole, dense in ((False, False), (True, False), (False, True)):
        wanted = (slopes * (logp_NV.exp() ** 2).sum(1)) if dense else slopes * (logp_N.exp() + entropy_N)
        expected = torch.autograd.grad(wanted.sum(), list(model.parameters()), retain_graph=True)
        (batch,) = micro_batches(given, range(5), 4096, grade=policy.grade)
        assert torch.allclose(policy.logprobs(batch), logp_N[torch.from_numpy(batch.flat_N)])
        if dense:
            policy.distil(
                batch, lambda found_NV, _, flat_N: (slopes[flat_N] * (found_NV.exp() ** 2).sum(1)).sum(), None
            )
        else:
            policy.backward(
                batch,
                lambda logp_N, entropy_N, flat_N: (slopes[flat_N] * (logp_N.exp() + entropy_N)).sum(),
                whole_sequences=whole,
            )
        for (name, parameter), gradient in zip(model.named_parameters(), expected, strict=True):
            assert torch.allclose(parameter.grad, gradient, atol=1e-7, rtol=1e-5), (whole, dense, name)
        model.zero_grad(set_to_none=True)


def full(policy: Policy, sample: Sequences) -> Tensor:
    """(tokens, vocabulary) by transformers alone."""
    implementation = policy.model.config._attn_implementation
    policy.model.set_attn_implementation("eager")
    ids = torch.from_numpy(np.concatenate([sample.prompt, sample.response]))[None]
    logits = policy.model(ids).logits[0, len(sample.prompt) - 1 : -1]
    policy.model.set_attn_implementation(implementation)
    return (logits / policy.temperature).log_softmax(-1)


@pytest.mark.parametrize("kind", ["gpt_neox", "mixtral", "llama"])
def test_weights_are_published_by_the_names_on_disk(tmp_path: Path, kind: str) -> None:
    """transformers renames the head of the first, and merges the experts of the second; the third's head is tied."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2} if kind == "gpt_neox" else {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model(kind, **sizes, **heads, tie_word_embeddings=kind == "llama")
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    tensors = Policy.load(tmp_path).tensors()
    assert tensors.keys() == stored.keys()
    assert all(torch.equal(tensors[name], stored[name]) for name in stored)
