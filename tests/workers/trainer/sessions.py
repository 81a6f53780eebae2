"""Samples in turns, some of several rows, and what each of their tokens should be, without packing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from rhymed.core.messages import Fork, SampleId, SampleInfo
from rhymed_store.client import StoredSample

PROMPTS, GROUP = 3, 4


class Session(NamedTuple):
    """Runs of tokens as in `SampleInfo`, and its forks for a prompt of so many tokens."""

    turns: list[int]
    forks: Any = lambda prompt: []


SESSIONS = [
    Session([3, 2, 2]),
    Session([2, 3, 1, 1, 4, 2]),  # its environment has the last word
    Session([4]),
    Session(  # the second row leaves out the first turn; the third and the fourth begin in it at the same token
        [3, 2, 2, 1, 3, 0, 2, 0, 2],
        lambda prompt: [
            Fork(start=7, row=0, shared=prompt),
            Fork(start=11, row=1, shared=prompt + 2),
            Fork(start=13, row=1, shared=prompt + 2),
        ],
    ),
    Session(  # another conversation, and one that shares only a part of the prompt
        [2, 3, 2, 2, 1],
        lambda prompt: [Fork(start=2, row=0, shared=0), Fork(start=7, row=0, shared=prompt - 2)],
    ),
]


def sessions(step: int, seed: int = 0) -> list[StoredSample]:
    """Whole groups. Of tokens of environments, log-probs are 0, as the store has them."""
    draw = np.random.default_rng([seed, step])
    found = []
    for prompt in range(PROMPTS):
        tokens = draw.integers(2, 250, 5 + prompt).astype(np.uint32)
        for index in range(GROUP):
            session = SESSIONS[(prompt * GROUP + index) % len(SESSIONS)]
            length = sum(session.turns)
            info = SampleInfo(
                id=SampleId(step, f"{prompt:016x}", index),
                prompt_length=len(tokens),
                length=length,
                finish_reason="length" if index == 0 else "stop",
                versions=[(step, length)],
                reward=float(draw.integers(0, 3)),
                turns=session.turns,
                earned=float(index),
                forks=session.forks(len(tokens)),
            )
            response = draw.integers(2, 250, length).astype(np.uint32)
            logprobs = np.where(written(info), draw.normal(-5.5, 0.1, length), 0.0).astype(np.float32)
            found.append(StoredSample(info, response, logprobs, tokens))
    return found


def written(info: SampleInfo) -> np.ndarray[Any, Any]:
    """(response tokens,) Whether the policy wrote them."""
    return np.array([place % 2 == 0 for place, count in enumerate(info.turns) for _ in range(count)], bool)


def cut_out(given: Sequence[StoredSample]) -> list[StoredSample]:
    """The policy's tokens alone, as samples of one turn."""
    found = []
    for sample in given:
        mask, length = written(sample.info), int(written(sample.info).sum())
        info = msgspec.structs.replace(
            sample.info, turns=[], forks=[], earned=None, length=length, versions=[(sample.info.id.step, length)]
        )
        assert sample.logprobs is not None
        found.append(StoredSample(info, sample.tokens[mask], sample.logprobs[mask], sample.prompt_tokens))
    return found


def rows(sample: StoredSample, prompt: list[int] | None = None) -> list[tuple[list[int], list[bool]]]:
    """Each row's tokens and which are learned, by the definition of `Fork`. `prompt`: instead of the sample's, where
    a row continues it."""
    own = list(map(int, sample.prompt_tokens))  # type: ignore[arg-type]
    tokens, mask = sample.tokens.tolist(), written(sample.info).tolist()
    forks = [Fork(start=0, row=0, shared=0), *sample.info.forks]
    found: list[list[int]] = []
    learned = []
    for fork, after in itertools.zip_longest(forks, forks[1:]):
        end = after.start if after else len(tokens)
        before = found[fork.row][: fork.shared] if found else own
        found.append(before + tokens[fork.start : end])
        learned.append([False] * len(before) + mask[fork.start : end])
    if prompt is None:
        return list(zip(found, learned, strict=True))
    shown = []
    for whole, flags in zip(found, learned, strict=True):
        continues = whole[: len(own)] == own and not any(flags[: len(own)])
        shown.append(
            (prompt + whole[len(own) :], [False] * len(prompt) + flags[len(own) :]) if continues else (whole, flags)
        )
    return shown


def distributions(
    model: Any, given: Sequence[StoredSample], prompts: Sequence[list[int]] | None = None, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(N, V) log-probs at every learned token of the samples, and (N,) the tokens, by transformers' own model."""
    found, targets = [], list[int]()
    for number, sample in enumerate(given):
        for tokens, learned in rows(sample, None if prompts is None else prompts[number]):
            places = [place for place, own in enumerate(learned) if own]
            logits = model(torch.tensor([tokens])).logits[0, [place - 1 for place in places]]
            found.append((logits / temperature).log_softmax(-1))
            targets += [tokens[place] for place in places]
    return torch.cat(found), torch.tensor(targets)


def chosen(logp_NV: Tensor, target_N: Tensor) -> Tensor:
    return logp_NV.gather(1, target_N[:, None]).squeeze(1)
