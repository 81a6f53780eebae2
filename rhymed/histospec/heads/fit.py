"""Trains a head on a run's own text: the policy's distributions are its targets, not only the sampled tokens.

At every response token the head is unrolled `DEPTH` deep on the true text. P is the policy's next-token distribution
(at the run's temperature, over the head's vocabulary), and Q the head's. A coupled draft is right with a probability
of (1 - TV) / (1 + TV) at least, where TV is the total variation between P and Q. So the loss of a depth is

    w KL(P, Q) + (1 - w) TV(P, Q),  w = exp(-FOCUS (1 - TV)) with a running mean of TV at this depth:

TV has hardly a gradient where the head knows nothing, so the divergence begins, and TV takes over as drafts become
right. A drafted token after a wrong one is worth nothing, so the true text is also what a draft is conditioned on
when it counts.

`newest` reads the text and `states` computes the hidden states; `fit` trains.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from rhymed.core.errors import ConfigError
from rhymed.core.steps import is_training
from rhymed.histospec.heads.model import Head
from rhymed.inputs.models import read_config
from rhymed_store.browse import Browse

DEPTH = 4  # tokens of a draft
WEIGHT = 0.8  # of each depth's loss, against the one before
FOCUS = 3.0  # how soon the total variation takes over from the divergence
RECENT = 0.1  # weight of one batch in the running mean of the total variation


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
    starts, variation_K = torch.nonzero(states.left_N > 0).flatten(), torch.ones(DEPTH)
    steps = fitting.passes * -(-len(starts) // fitting.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20) * (1 - step / steps))
    maker, began = torch.Generator().manual_seed(fitting.seed), time.monotonic()
    for done in range(fitting.passes):
        total = 0.0
        for chosen in starts[torch.randperm(len(starts), generator=maker)].split(fitting.batch):
            loss = _loss(head, states, chosen, output_RD, temperature, variation_K)
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
    head: Head,
    states: States,
    start_B: torch.Tensor,
    output_RD: torch.Tensor,
    temperature: float,
    variation_K: torch.Tensor,
) -> torch.Tensor:
    """`variation_K`: the running mean of the total variation by depth, which this batch changes."""
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
        logs_BR = functional.log_softmax(head.logits(state_BD) / temperature, -1)
        divergence = functional.kl_div(logs_BR, target_BR, reduction="batchmean")
        variation = (target_BR - logs_BR.exp()).abs().sum(-1).mean() / 2
        variation_K[depth - 1] += RECENT * (variation.detach() - variation_K[depth - 1])
        share = torch.exp(-FOCUS * (1 - variation_K[depth - 1]))
        total = total + WEIGHT ** (depth - 1) * (share * divergence + (1 - share) * variation)
    return total


# What a head learns from: a run's newest samples, and the policy's hidden states at their response tokens.

BATCH_TOKENS = 4096  # of one forward pass, with padding
STATES_BYTES = 4 << 30  # of hidden states


class Text(NamedTuple):
    tokens: NDArray[np.int64]  # prompt and response
    prompt: int  # tokens of the prompt
    step: int


@dataclass(frozen=True)
class States:
    """All texts one after another, from the last prompt token on. N: positions."""

    hidden_ND: torch.Tensor  # after the policy's final norm
    token_N: torch.Tensor  # the token at the position, which the hidden state has read
    left_N: torch.Tensor  # positions of the same text that follow
    position_N: torch.Tensor  # in prompt and response


def newest(browse: Browse, most: int) -> list[Text]:
    """At most `most` samples of training, those of the newest steps; of one step spread over its prompts."""
    found = (
        (response.info.id.step, response.info.id.index, prompt, response)
        for prompt in browse.ids()
        for response in browse.responses(prompt)
        if is_training(response.info.id.step) and len(response.tokens) and len(response.prompt_tokens)
    )
    rows = heapq.nsmallest(most, found, key=lambda row: (-row[0], row[1], row[2]))  # not all in memory
    return [_text(response.prompt_tokens, response.tokens, step) for step, _, _, response in rows]


def fitting_in(texts: Sequence[Text], width: int, most_bytes: int = STATES_BYTES) -> list[Text]:
    """The texts, long responses cut so that the hidden states of all fit. `width`: of the policy."""
    most = max(1, most_bytes // (4 * width * len(texts)))  # float32
    return [text._replace(tokens=text.tokens[: text.prompt + most]) for text in texts]


def _text(prompt: NDArray[Any], response: NDArray[Any], step: int) -> Text:
    return Text(np.concatenate((prompt, response)).astype(np.int64), len(prompt), step)


def states(model: Any, texts: Sequence[Text]) -> States:
    """One forward pass per text. `model`: a Hugging Face model without its output layer, on any device."""
    hidden, tokens, left, positions = [], [], [], []
    with torch.inference_mode():
        for batch in _batches(texts):
            longest = max(len(text.tokens) for text in batch)
            ids_BT = torch.zeros(len(batch), longest, dtype=torch.int64)
            for row, text in enumerate(batch):
                ids_BT[row, : len(text.tokens)] = torch.from_numpy(text.tokens)
            # Padding stands behind the text and attention is causal, so no mask is needed.
            made = model(input_ids=ids_BT.to(model.device), use_cache=False).last_hidden_state
            for row, text in enumerate(batch):
                first, end = text.prompt - 1, len(text.tokens)
                hidden.append(made[row, first:end].float().cpu().clone())
                tokens.append(torch.from_numpy(text.tokens[first:end]))
                left.append(torch.arange(end - first - 1, -1, -1))
                positions.append(torch.arange(first, end))
    return States(torch.cat(hidden), torch.cat(tokens), torch.cat(left), torch.cat(positions))


def _batches(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Of similar lengths, so that there is little padding."""
    batch: list[Text] = []
    for text in sorted(texts, key=lambda text: len(text.tokens)):
        if batch and len(text.tokens) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def load_policy(folder: Path) -> Any:
    """The model of a folder or a checkpoint, in float32 on the CPU. Raises `ConfigError`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        read_config(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} has no model that can be loaded: {error}") from None
    return model.eval()
