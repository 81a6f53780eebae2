from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed_workers.trainer.critic import ValueModel
from rhymed_workers.trainer.policy.attention import NAME
from rhymed_workers.trainer.policy.packing import Sequences, micro_batches


def plain(model: ValueModel, samples: list[Sequences]) -> Tensor:
    """The obvious way: one sample at a time; the state before a token ends with the token before it."""
    model.body.set_attn_implementation("sdpa")
    found = []
    for prompt, response, *_ in samples:
        ids = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
        hidden_NH = model.body(ids).last_hidden_state[0]
        found.append(model.head(hidden_NH[len(prompt) - 1 : -1]).squeeze(-1))
    model.body.set_attn_implementation(NAME)
    return torch.cat(found)


@pytest.mark.parametrize("micro_tokens", [8, 40, 4096])
def test_values_are_those_of_the_states_before_the_tokens(
    model: ValueModel, samples: list[Sequences], micro_tokens: int
) -> None:
    expected = plain(model, samples).detach()
    found = torch.full_like(expected, torch.nan)
    for batch in micro_batches(samples, range(5), micro_tokens):
        found[torch.from_numpy(batch.flat_N)] = model.values(batch)
    assert torch.allclose(found, expected, atol=1e-5)
    assert expected.std() > 0.1


def test_a_value_does_not_see_its_token(model: ValueModel, samples: list[Sequences]) -> None:
    prompt, response, *_ = samples[0]
    other = np.concatenate([response[:-1], [response[-1] ^ 1]])
    values = [model.values(micro_batches([Sequences(prompt, tokens)], [0], 64)[0]) for tokens in (response, other)]
    assert torch.equal(*values)


def test_values_begin_at_0(tiny_model: Path, samples: list[Sequences]) -> None:
    made = ValueModel.load(tiny_model)
    assert (made.values(micro_batches(samples, range(5), 4096)[0]) == 0).all()
    assert "lm_head" not in " ".join(name for name, _ in made.named_parameters())


@pytest.mark.parametrize("micro_tokens", [1, 30, 4096])
def test_any_split_into_micro_batches_gives_the_same_gradient(
    model: ValueModel, samples: list[Sequences], micro_tokens: int
) -> None:
    weights = torch.linspace(0.2, 1, 27) / 27
    loss = (weights * (plain(model, samples) - 1) ** 2).sum()
    loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    total = 0.0
    for batch in micro_batches(samples, range(5), micro_tokens):
        weights_N = weights[torch.from_numpy(batch.flat_N)]
        total += float(model.backward(batch, lambda values_N, of_N=weights_N: (of_N * (values_N - 1) ** 2).sum()))
    assert total == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6), name
