"""A step's samples as losses see them: micro-batches, and a tensor of every quantity over all response tokens.

Reads no weights itself: log-probs come from functions that it is given. A sample that adds nothing to the gradient is
in no micro-batch; it still counts in the loss's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rhymed.core.algorithms import Aggregation, Recipe
from rhymed.core.config import Trainer
from rhymed_store.client import StoredSample
from rhymed_workers.trainer import critic
from rhymed_workers.trainer.algorithms.advantages import Objectives, advantages, overlong_penalty
from rhymed_workers.trainer.algorithms.gae import sample_sums
from rhymed_workers.trainer.algorithms.losses import kl, token_weights
from rhymed_workers.trainer.algorithms.tokens import Tokens
from rhymed_workers.trainer.policy.grades import Grade
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.turns import learned, longest_response, sequences_of, token_rewards

LogProbs = Callable[[Sequence[MicroBatch], int], Tensor]
"""(micro-batches, response tokens of the step) -> (N,) log-probs; NaN for tokens in no micro-batch."""

Values = Callable[[Sequence[MicroBatch], int], Tensor]
"""Likewise -> (N,) a critic's values; 0 for tokens in no micro-batch."""

Part = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Batch:
    """Axis N: response tokens of the step that the policy wrote, sample after sample. Axis B: its samples."""

    updates: list[list[MicroBatch]]  # of every optimizer step
    lengths_B: Tensor
    sample_N: Tensor  # number of the token's sample
    advantages_N: Tensor
    weights_N: Tensor  # of the aggregation
    means_N: Tensor  # of a mean over the tokens of each optimizer step
    engine_N: Tensor
    old_N: Tensor | None  # the trainer's before the first update; None: there is only one update
    reference_N: Tensor | None
    targets: critic.Targets | None  # of the critic
    penalty: float | None  # mean that overlong responses lose; None: it is off
    kl: float | None  # mean over tokens of the KL in the reward

    def to(self, device: torch.device) -> Batch:
        """With all tensors there; micro-batches are moved by the policy."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        moved = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    @property
    def metrics(self) -> dict[str, float]:
        """Those that are on, by name."""
        found = {
            "reward/overlong_penalty": self.penalty,
            "actor/kl": self.kl,
        }
        return {name: value for name, value in found.items() if value is not None}

    def tokens(self, logp_N: Tensor, flat_N: Tensor) -> Tokens:
        """Those with these numbers."""
        return Tokens(
            logp_N,
            logp_N.detach() if self.old_N is None else self.old_N[flat_N],
            self.engine_N[flat_N],
            self.advantages_N[flat_N],
            self.sample_N[flat_N],
            self.lengths_B,
            None if self.reference_N is None else self.reference_N[flat_N],
            updated=len(self.updates) > 1,
        )


def engine_logprobs(samples: Sequence[StoredSample]) -> Tensor:
    return torch.from_numpy(np.concatenate([learned(sample.info, required(sample.logprobs)) for sample in samples]))


def required(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    assert array is not None, "samples are fetched with log-probs and prompt tokens"
    return array


def assemble(
    samples: Sequence[StoredSample],
    config: Trainer,
    longest: int,
    policy: LogProbs,
    reference: LogProbs | None = None,
    values: Values | None = None,
    dense: bool = False,
    scorers: Mapping[str, float] = {},
    grade: Grade = Grade.PACKED,
) -> Batch:
    """`longest`: limit of response tokens. A KL term needs `reference`, a critic `values`. `dense`: train all.
    `scorers`: label -> weight. `grade`: the policy's."""
    recipe, sequences = config.recipe, sequences_of(samples)
    lengths_B = torch.tensor([sample.info.learned for sample in samples])
    kept_B = kept(samples, recipe)
    parts = np.array_split(np.arange(len(samples)), min(config.minibatches, len(samples)))
    updates_of = partial(_updates, sequences, parts, config.micro_tokens, grade)
    total = int(lengths_B.sum())
    every = _flat(updates_of(kept_B)) if recipe.old_first or recipe.critic else []
    old_N, kl_N = _kl_first(policy, reference, every, total, recipe)
    rewards_B, penalty = _rewards(samples, recipe, longest)
    placed = token_rewards(samples)
    earned_N = None if placed is None else torch.from_numpy(placed)
    means_N = _weights(lengths_B, kept_B, parts, "token-mean", longest)
    targets = None
    if values is None:
        advantages_N = advantages(
            rewards_B,
            _groups(samples),
            lengths_B,
            recipe,
            kept_B=kept_B,
            kl_N=kl_N,
            earned_N=earned_N,
            objectives=_objectives(samples, rewards_B, scorers) if recipe.advantage == "decoupled" else None,
        )
    else:
        values_N = values(every, total)
        advantages_N, targets = critic.advantages(values_N, means_N, rewards_B, lengths_B, recipe, kl_N, earned_N)
    signal_B = dense | recipe.dense | _any(advantages_N != 0, lengths_B)
    whole = recipe.whole_sequences(updates=len(parts))
    updates = updates_of(kept_B & signal_B, whole=whole)
    if old_N is None and len(parts) > 1:
        old_N = policy(_flat(updates), total)
    return Batch(
        updates,
        lengths_B,
        torch.arange(len(samples)).repeat_interleave(lengths_B),
        advantages_N,
        _weights(lengths_B, kept_B, parts, recipe.aggregation, longest),
        means_N,
        engine_logprobs(samples),
        old_N,
        _reference_in_loss(reference, updates, total, recipe),
        targets,
        penalty,
        None if kl_N is None else float(kl_N.sum()) / max(1, int(lengths_B[kept_B].sum())),
    )


def _kl_first(
    policy: LogProbs, reference: LogProbs | None, batches: Sequence[MicroBatch], total: int, recipe: Recipe
) -> tuple[Tensor | None, Tensor | None]:
    """(N,) log-probs of the policy, and the KL of each token, if it is in the reward; else nothing."""
    if not recipe.old_first:
        return None, None
    assert reference is not None, "a KL term needs the reference model"
    old_N = policy(batches, total)
    kl_N = kl(old_N, reference(batches, total), recipe.kl_estimator)
    return old_N, kl_N.where(~kl_N.isnan(), 0.0)  # of tokens in no micro-batch


def _reference_in_loss(
    reference: LogProbs | None, updates: list[list[MicroBatch]], total: int, recipe: Recipe
) -> Tensor | None:
    """(N,) Its log-probs, if the loss has a KL term."""
    if reference is None or not recipe.kl_coef or recipe.kl_in != "loss":
        return None
    return reference(_flat(updates), total)


def _updates(
    sequences: Sequence[Sequences],
    parts: Sequence[Part],
    micro_tokens: int,
    grade: Grade,
    chosen_B: Tensor,
    *,
    whole: bool = False,
) -> list[list[MicroBatch]]:
    """The chosen samples of every optimizer step. `whole`: each in one micro-batch."""
    chosen, sample = chosen_B.numpy(), np.array([sequence.sample for sequence in sequences])
    every = [np.flatnonzero(np.isin(sample, part[chosen[part]])) for part in parts]
    return [micro_batches(sequences, numbers.tolist(), micro_tokens, whole=whole, grade=grade) for numbers in every]


def _any(found_N: Tensor, lengths_B: Tensor) -> Tensor:
    """(B,) Samples with such a token."""
    return sample_sums(found_N.double(), lengths_B) > 0


def _groups(samples: Sequence[StoredSample]) -> Tensor:
    return torch.tensor(np.unique([sample.info.id.prompt for sample in samples], return_inverse=True)[1])


def kept(samples: Sequence[StoredSample], recipe: Recipe) -> Tensor:
    cut_B = torch.tensor([sample.info.finish_reason == "length" for sample in samples])
    return ~cut_B if recipe.overlong_filter else torch.ones_like(cut_B)


def _rewards(samples: Sequence[StoredSample], recipe: Recipe, longest: int) -> tuple[Tensor, float | None]:
    """Shaped rewards, and the mean of what overlong responses lost: tokens of environments count as length, too."""
    rewards_B = torch.tensor([sample.info.reward for sample in samples], dtype=torch.float64)
    if not recipe.overlong_cache:
        return rewards_B, None
    lengths_B = torch.tensor([longest_response(sample.info) for sample in samples])
    penalty_B = overlong_penalty(lengths_B, recipe, longest)
    return rewards_B + penalty_B, -float(penalty_B.mean())


def _objectives(
    samples: Sequence[StoredSample], rewards_B: Tensor, scorers: Mapping[str, float]
) -> Objectives | None:
    """Each scorer's rewards, and the penalties of overlong responses. None: there is one scorer."""
    if len(scorers) < 2:
        return None
    rows = [[sample.parts.get(label, torch.nan) for label in scorers] for sample in samples]
    lost_B = rewards_B - torch.tensor([sample.info.reward for sample in samples], dtype=torch.float64)
    parts_BK = torch.cat([torch.tensor(rows, dtype=torch.float64), lost_B[:, None]], 1)
    return Objectives(parts_BK, torch.tensor([*scorers.values(), 1.0], dtype=torch.float64))


def _weights(lengths_B: Tensor, kept_B: Tensor, parts: Sequence[Part], mean: Aggregation, longest: int) -> Tensor:
    """Each optimizer step has a mean of its own."""
    chosen = [torch.from_numpy(part) for part in parts]
    return torch.cat([token_weights(lengths_B[part], mean, longest=longest, kept_B=kept_B[part]) for part in chosen])


def _flat(updates: list[list[MicroBatch]]) -> list[MicroBatch]:
    return [batch for update in updates for batch in update]
