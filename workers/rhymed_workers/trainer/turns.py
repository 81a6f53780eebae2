"""A sample in turns as the model reads it: its rows, and which of their tokens are learned. Pure: numpy only.

The policy's tokens alone are learned. Those of an environment are context. They are on no axis of learned tokens, so
no log-prob, advantage, entropy or mean ever includes one.

A sample has one row, or several if its program rewrote or branched the conversation (`SampleInfo.forks`). A row is
the tokens that a row before it shares with it, and its own; each token of the response is one row's own, so it is
learned once. In every mean over samples the rows of a sample count as one sample, whose tokens are those of all its
rows, row after row. They have the sample's reward and share its advantage; for an estimate of advantages over time
(GAE, returns) the rows follow each other as the turns of one row do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rhymed.core.messages import SampleInfo
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.policy.packing import Sequences

Number = TypeVar("Number", bound=np.generic)
Tokens = NDArray[Any]


def learned_mask(info: SampleInfo) -> NDArray[np.bool_] | None:
    """(response tokens,) True for the policy's; None: all are."""
    if not info.turns:
        return None
    return np.repeat(np.arange(len(info.turns)) % 2 == 0, info.turns)


def learned(info: SampleInfo, values: NDArray[Number]) -> NDArray[Number]:
    """Of values of all response tokens, those of the policy's."""
    mask = learned_mask(info)
    return values if mask is None else values[mask]


def token_rewards(samples: Sequence[StoredSample]) -> NDArray[np.float64] | None:
    """(learned tokens,) what each of them earned; None: no sample says where. What an environment's token earned is
    of the policy's token before it."""
    if not any(sample.token_rewards for sample in samples):
        return None
    found = np.zeros(sum(sample.info.learned for sample in samples))
    start = 0
    for sample in samples:
        if sample.token_rewards:
            positions, rewards = zip(*sample.token_rewards, strict=True)
            mask, own = learned_mask(sample.info), np.array(positions)
            if mask is not None:
                own = np.maximum(mask.cumsum() - 1, 0)[own]
            np.add.at(found, start + own, rewards)
        start += sample.info.learned
    return found


def sequences_of(samples: Sequence[StoredSample], prompts: Sequence[Tokens] | None = None) -> list[Sequences]:
    """Of each sample its rows, with the number of the sample; one after another their learned tokens are the step's.

    `prompts`: of each sample, what a teacher reads instead of its prompt. A row that does not continue the prompt is
    read as it is.
    """
    return [
        sequence
        for number, sample in enumerate(samples)
        for sequence in _rows(sample, number, None if prompts is None else prompts[number])
    ]


def _rows(sample: StoredSample, number: int, shown: Tokens | None) -> list[Sequences]:
    info, mask, prompt = sample.info, learned_mask(sample.info), sample.prompt_tokens
    assert prompt is not None, "samples are fetched with prompt tokens"
    if not info.forks:
        return [Sequences(prompt if shown is None else shown, sample.tokens, mask, number, sample.floors)]
    assert mask is not None, "a sample with several rows has turns"
    whole, found = list[Tokens](), list[Sequences]()
    for (start, end), fork, continues in zip(_bounds(info), [None, *info.forks], _continues(info), strict=True):
        shared = prompt if fork is None else whole[fork.row][: fork.shared]
        response, own = sample.tokens[start:end], mask[start:end]
        floors = None if sample.floors is None else sample.floors[start:end]
        whole.append(np.concatenate([shared, response]))
        if shown is not None and continues:
            shared = np.concatenate([shown, shared[len(prompt) :]])
        if not len(shared):  # what the environment wrote is its prompt
            first = int(own.argmax())
            shared, response, own = response[:first], response[first:], own[first:]
            floors = None if floors is None else floors[first:]
        found.append(Sequences(shared, response, own, number, floors))
    return found


def row_lengths(info: SampleInfo) -> list[int]:
    """Tokens of each row, with those that it shares: what the model reads."""
    shared = [info.prompt_length, *(fork.shared for fork in info.forks)]
    return [before + end - start for before, (start, end) in zip(shared, _bounds(info), strict=True)]


def longest_response(info: SampleInfo) -> int:
    """Tokens behind the prompt, of its longest row."""
    return max(0, max(row_lengths(info)) - info.prompt_length)


def _bounds(info: SampleInfo) -> list[tuple[int, int]]:
    """Where in the response each row's own tokens begin and end."""
    return list(itertools.pairwise([0, *(fork.start for fork in info.forks), info.length]))


def _continues(info: SampleInfo) -> list[bool]:
    """Of each row, whether it begins with the sample's prompt."""
    found = [True]
    for fork in info.forks:
        found.append(found[fork.row] and fork.shared >= info.prompt_length)
    return found


def problem(info: SampleInfo) -> str:
    """What is wrong with its turns and rows, as words behind "the sample has"; empty: nothing."""
    if info.turns and (sum(info.turns) != info.length or min(info.turns) < 0 or not info.learned):
        return f"turns {info.turns[:8]} that are not its {info.length} tokens, or none of the policy"
    return _problem_of_forks(info) if info.forks else ""


def _problem_of_forks(info: SampleInfo) -> str:
    begins = set(itertools.accumulate(info.turns, initial=0))
    starts = [0, *(fork.start for fork in info.forks), info.length]
    if any(after <= before for before, after in itertools.pairwise(starts)):
        return f"rows that begin at {starts[1:9]} of its {info.length} tokens"
    mask, lengths = learned_mask(info), row_lengths(info)
    for number, fork in enumerate(info.forks, 1):
        if mask is None or fork.start not in begins:
            return f"a row that begins within a turn, at token {fork.start}"
        if not fork.row < number:
            return f"row {number} that continues row {fork.row}, which is not before it"
        if fork.shared > lengths[fork.row]:
            return f"row {number} that shares {fork.shared} tokens of the {lengths[fork.row]} of row {fork.row}"
        if not fork.shared and mask[fork.start]:
            return f"row {number} without a token before the policy's"
    return ""


def turn_metrics(samples: Sequence[StoredSample]) -> dict[str, float]:
    """Empty without an environment."""
    infos = [sample.info for sample in samples if sample.info.turns]
    if not infos:
        return {}
    counts = [info.turn_count for info in infos]
    total = sum(info.length for info in infos)
    metrics = {
        "turns/mean": float(np.mean(counts)),
        "turns/max": float(max(counts)),
        "turns/rows": float(np.mean([1 + len(info.forks) for info in infos])),
        "turns/environment_ratio": 1.0 - sum(info.learned for info in infos) / max(1, total),
    }
    earned = [info.earned for info in infos if info.earned is not None]
    return metrics | ({"reward/earned": float(np.mean(earned))} if earned else {})
