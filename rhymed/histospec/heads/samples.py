"""What a head learns from: a run's newest samples, and the policy's hidden states at their response tokens."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rhymed.errors import ConfigError
from rhymed.messages import EVAL
from rhymed_store.inspect.browse import Browse

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
        if 0 <= response.info.id.step < EVAL and len(response.tokens) and len(response.prompt_tokens)
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
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} has no model that can be loaded: {error}") from None
    return model.eval()
