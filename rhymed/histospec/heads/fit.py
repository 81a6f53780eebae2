"""Trains a head on a run's own text: the policy's distributions are its targets, not only the sampled tokens.

At every response token the head is unrolled `DEPTH` deep on the true text, and the loss is the cross-entropy between
the policy's next-token distribution (at the run's temperature, over the head's vocabulary) and the head's. A drafted
token after a wrong one is worth nothing, so the true text is also what a draft is conditioned on when it counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from rhymed.histospec.heads.model import Head
from rhymed.histospec.heads.samples import States

DEPTH = 4  # tokens of a draft
WEIGHT = 0.8  # of each depth's loss, against the one before


@dataclass(frozen=True)
class Fitting:
    passes: int = 8  # over the text
    batch: int = 512  # positions
    lr: float = 2e-3
    seed: int = 0
    most_s: float = 0.0  # end earlier; 0: no limit


def vocabulary(tokens: torch.Tensor, size: int, most: int) -> torch.Tensor:
    """The `most` most frequent tokens, ascending. `size`: of the policy's vocabulary. Of equally frequent ones the
    lower id, which a tokenizer of merged pairs has learned earlier, so from more text."""
    counts_V = torch.bincount(tokens, minlength=size)
    return torch.argsort(counts_V, descending=True, stable=True)[:most].sort().values


def fit(
    head: Head,
    states: States,
    output_RD: torch.Tensor,
    temperature: float,
    fitting: Fitting = Fitting(),
    report: Callable[[int, float], None] | None = None,
) -> Head:
    """`output_RD`: the policy's output layer for the tokens `head.ids_R`. `report`: is given the passes done and the
    mean loss of the last one. Deterministic for one number of threads."""
    trained = {name: tensor.clone().requires_grad_() for name, tensor in head.weights.items()}
    head = replace(head, weights=trained)
    slow = [trained["embed_RD"], trained["out_RD"]]  # they begin at the policy's own
    rest = [tensor for name, tensor in trained.items() if not name.endswith("_RD")]
    groups = [{"params": slow, "lr": fitting.lr / 10}, {"params": rest, "lr": fitting.lr}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    starts = torch.nonzero(states.left_N > 0).flatten()
    steps = fitting.passes * -(-len(starts) // fitting.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20) * (1 - step / steps))
    maker, began = torch.Generator().manual_seed(fitting.seed), time.monotonic()
    for done in range(fitting.passes):
        total = 0.0
        for chosen in starts[torch.randperm(len(starts), generator=maker)].split(fitting.batch):
            loss = _loss(head, states, chosen, output_RD, temperature)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*slow, *rest], 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        if report:
            report(done + 1, total / len(starts))
        if fitting.most_s and time.monotonic() - began > fitting.most_s:
            break
    return replace(head, weights={name: tensor.detach() for name, tensor in trained.items()})


def _loss(
    head: Head, states: States, start_B: torch.Tensor, output_RD: torch.Tensor, temperature: float
) -> torch.Tensor:
    state_BD, total = states.hidden_ND[start_B], torch.zeros(())
    for depth in range(1, DEPTH + 1):
        there = states.left_N[start_B] >= depth
        if not there.any():
            break
        start_B, state_BD = start_B[there], state_BD[there]
        at_B = start_B + depth
        state_BD = head.advance(state_BD, states.token_N[at_B])
        with torch.no_grad():
            target_BR = functional.softmax(states.hidden_ND[at_B] @ output_RD.T / temperature, -1)
        loss = functional.cross_entropy(head.logits(state_BD) / temperature, target_BR)
        total = total + WEIGHT ** (depth - 1) * loss
    return total
