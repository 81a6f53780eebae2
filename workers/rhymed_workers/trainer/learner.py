"""The learner with torch: scored groups in, changed weights and metrics out. Blocking; runs on one thread.

Owns policy, optimizer and position. Two learners with equal state and equal samples end up with equal bits. A sample
whose advantage is 0 adds nothing to the gradient, so without a KL term it is not computed; it still counts in the
loss's mean. Does not know where samples come from or where weights go.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rhymed.config import Config, Trainer
from rhymed.inputs.models import resolve_model
from rhymed_store.client import StoredSample
from rhymed_workers.trainer import grpo, state
from rhymed_workers.trainer.optim import optimizer, schedule
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.samples import Progress, check_staleness, sample_metrics, scored_groups

log = logging.getLogger(__name__)


@dataclass
class Sums:
    """Sums over the tokens of a step."""

    tokens: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    mismatch: float = 0.0
    compared: int = 0  # tokens summed in `mismatch`
    computed: int = 0  # tokens through the model, with prompts, without padding
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0  # optimizer steps with a loss or gradient that is not finite


@dataclass(frozen=True)
class Tokens:
    """All response tokens of a step, sample after sample. Axis N."""

    advantages_N: Tensor
    engine_N: Tensor  # log-probs from the engine
    weights_N: Tensor
    old_N: Tensor | None  # the trainer's before the first update; None: there is only one update
    reference_N: Tensor | None


class TorchLearner:
    """`source`: folder of the model that training started from, for its tokenizer files. `dtype`: of the published
    weights.
    """

    reads_logprobs = True

    def __init__(
        self,
        config: Trainer,
        policy: Policy,
        reference: Policy | None = None,
        source: Path | None = None,
        *,
        max_staleness: int,
        dtype: str,
    ) -> None:
        self._config, self._recipe, self._max_staleness = config, config.recipe, max_staleness
        self.policy, self._reference, self._source = policy, reference, source
        self.dtype = dtype
        self.steps = 0  # trained so far; also the version of the weights
        recipe = self._recipe
        cap = recipe.tis_cap if recipe.correction == "token-tis" else None
        self._objective = grpo.Objective(recipe.clip_eps_low, recipe.clip_eps_high, recipe.kl_coef, cap)
        self._optimizer = optimizer.build(config, policy.model.parameters())
        self._run_steps = 0  # of the whole run; 0: unknown

    @classmethod
    def restore(cls, config: Config, folder: Path | None) -> TorchLearner:
        """From a checkpoint's folder, or without one from the model. Raises `CheckpointError`, `ConfigError`."""
        if config.trainer.threads:
            torch.set_num_threads(config.trainer.threads)
        source, temperature = resolve_model(config), config.rollout.temperature
        policy = Policy.load(folder or source, temperature)
        reference = Policy.load(source, temperature) if config.trainer.recipe.kl_coef else None
        max_staleness, dtype = config.schedule.max_staleness, config.model.dtype
        learner = cls(config.trainer, policy, reference, source, max_staleness=max_staleness, dtype=dtype)
        if folder is not None:
            learner.load(folder)
        return learner

    def __str__(self) -> str:
        return type(self.policy.model).__name__

    def tensors(self) -> dict[str, Tensor]:
        return self.policy.tensors()

    def digest(self) -> str:
        """Empty: reading all weights after each step would take a second per gigabyte."""
        return ""

    def check(self, step: int, samples: Sequence[StoredSample]) -> None:
        check_staleness(step, samples, self._max_staleness)

    def train(
        self,
        samples: Sequence[StoredSample],
        progress: Progress = lambda done, total: None,
        run_steps: int = 0,
    ) -> dict[str, float]:
        """Train the next step and return its metrics. Groups with fewer than two scored samples are left out."""
        self.check(self.steps, samples)
        started, self._run_steps = time.perf_counter(), run_steps
        torch.manual_seed(self.steps)
        chosen, skipped = scored_groups(samples)
        sums = self._update(chosen, progress) if chosen else Sums()
        self.steps += 1
        seconds = time.perf_counter() - started
        metrics = sample_metrics(self.steps - 1, samples, chosen) | self._update_metrics(sums)
        metrics |= {
            "actor/groups_skipped": float(skipped),
            "timing_s/train": seconds,
            "perf/train_tokens_per_s": sums.computed / seconds,
        }
        return metrics

    def _update(self, samples: Sequence[StoredSample], progress: Progress) -> Sums:
        groups = torch.tensor(np.unique([s.info.id.prompt for s in samples], return_inverse=True)[1])
        rewards = torch.tensor([sample.info.reward for sample in samples], dtype=torch.float64)
        advantages_B = grpo.advantages(rewards, groups, std_normalise=self._recipe.advantage_scale == "group")
        useful_B = (advantages_B != 0).numpy() | (self._recipe.kl_coef > 0)
        sequences = [Sequences(_required(sample.prompt_tokens), sample.tokens) for sample in samples]
        parts = np.array_split(np.arange(len(samples)), min(self._config.minibatches, len(samples)))
        batches = [micro_batches(sequences, part[useful_B[part]], self._config.micro_tokens) for part in parts]
        tokens = self._tokens(samples, parts, advantages_B, [batch for part in batches for batch in part])
        sums, total, done = Sums(), sum(map(len, batches)), 0
        if not total:
            self._compare(samples, sequences, sums)
        for part in batches:
            loss = 0.0
            for batch in part:
                progress(done, total)
                loss += self._accumulate(batch, tokens, sums)
                done += 1
            self._optimize(loss, sums)
        progress(total, total)
        return sums

    def _compare(self, samples: Sequence[StoredSample], sequences: Sequence[Sequences], sums: Sums) -> None:
        """No sample had a signal: engine and trainer are still compared, on one micro-batch."""
        batches = micro_batches(sequences, range(len(samples)), self._config.micro_tokens)
        if batches:
            engine_N = torch.from_numpy(np.concatenate([_required(sample.logprobs) for sample in samples]))
            self._mismatch(engine_N[batches[0].flat_N], self.policy.logprobs(batches[0]), sums)

    def _mismatch(self, engine_N: Tensor, logp_N: Tensor, sums: Sums) -> None:
        sums.mismatch += float(torch.nan_to_num(grpo.k3(engine_N, logp_N)).sum())
        sums.compared += len(engine_N)

    def _tokens(
        self,
        samples: Sequence[StoredSample],
        parts: Sequence[np.ndarray[Any, Any]],
        advantages_B: Tensor,
        batches: Sequence[MicroBatch],
    ) -> Tokens:
        lengths_B = torch.tensor([sample.info.length for sample in samples])
        norm: Literal["token", "sequence"] = "token" if self._recipe.aggregation == "token-mean" else "sequence"
        weights = [grpo.token_weights(lengths_B[torch.from_numpy(part)], norm) for part in parts]
        return Tokens(
            advantages_B.repeat_interleave(lengths_B),
            torch.from_numpy(np.concatenate([_required(sample.logprobs) for sample in samples])),
            torch.cat(weights),
            _logprobs(self.policy, batches, int(lengths_B.sum())) if len(parts) > 1 else None,
            _logprobs(self._reference, batches, int(lengths_B.sum())) if self._reference else None,
        )

    def _accumulate(self, batch: MicroBatch, tokens: Tokens, sums: Sums) -> float:
        def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
            old_N = logp_N.detach() if tokens.old_N is None else tokens.old_N[flat_N]
            engine_N = tokens.engine_N[flat_N]
            reference_N = None if tokens.reference_N is None else tokens.reference_N[flat_N]
            terms = grpo.terms(logp_N, old_N, engine_N, tokens.advantages_N[flat_N], self._objective, reference_N)
            sums.entropy += float(entropy_N.sum())
            sums.clipped += float(terms.clipped_N.sum())
            self._mismatch(engine_N, old_N, sums)
            sums.kl += 0.0 if terms.kl_N is None else float(terms.kl_N.sum())
            return (terms.loss_N * tokens.weights_N[flat_N]).sum()

        value = float(self.policy.backward(batch, loss))
        sums.tokens += len(batch.target_N)
        sums.computed += batch.tokens
        sums.loss += value
        return value

    def _optimize(self, loss: float, sums: Sums) -> None:
        """Clip and step. An update that is not finite is skipped, so that it never reaches the weights."""
        parameters = list(self.policy.model.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # no sample had a signal: momentum still moves the weights
                parameter.grad = torch.zeros_like(parameter)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm))
        if math.isfinite(norm) and math.isfinite(loss):
            for group in self._optimizer.param_groups:
                group["lr"] = self.lr
            self._optimizer.step()
            sums.grad_norms.append(norm)
        else:
            log.error("step %d: loss %s, gradient norm %s: this update is skipped", self.steps + 1, loss, norm)
            sums.skipped += 1
        self._optimizer.zero_grad(set_to_none=True)

    @property
    def lr(self) -> float:
        """Of the next step."""
        return self._config.lr * schedule.factor(self._config, self.steps, self._run_steps)

    def _update_metrics(self, sums: Sums) -> dict[str, float]:
        """A metric that was not computed is left out, not 0."""
        updates = max(1, len(sums.grad_norms) + sums.skipped)
        metrics = {
            "actor/loss": sums.loss / updates,
            "actor/lr": float(self._optimizer.param_groups[0]["lr"]),
            "actor/skipped_updates": float(sums.skipped),
        }
        if sums.grad_norms:
            metrics["actor/grad_norm"] = float(np.mean(sums.grad_norms))
        if sums.tokens:
            metrics |= {
                "actor/tokens": float(sums.tokens),
                "actor/entropy": sums.entropy / sums.tokens,
                "actor/pg_clipfrac": sums.clipped / sums.tokens,
            }
            if self._reference is not None:
                metrics["actor/kl"] = sums.kl / sums.tokens
        if sums.compared:
            metrics["mismatch_kl/mean"] = sums.mismatch / sums.compared
            self._warn_of_mismatch(metrics["mismatch_kl/mean"])
        return metrics

    def _warn_of_mismatch(self, mean: float) -> None:
        if mean > self._config.mismatch_warn:
            log.warning(
                "step %d: mismatch_kl/mean %.4f is above trainer.mismatch_warn = %g: the probabilities of engine and"
                " trainer differ",
                self.steps,
                mean,
                self._config.mismatch_warn,
            )

    def save(self, folder: Path) -> None:
        """A Hugging Face folder with what a resume needs."""
        state.save(folder, self.policy.model, self._optimizer, self.steps)
        if self._source:
            state.copy_tokenizer(self._source, folder)

    def load(self, folder: Path) -> None:
        """All but the policy, which was loaded from the same folder. Raises `CheckpointError`."""
        self.steps = state.load(folder, self.policy.model, self._optimizer)


def _required(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    assert array is not None, "samples are fetched with log-probs and prompt tokens"
    return array


def _logprobs(policy: Policy, batches: Sequence[MicroBatch], count: int) -> Tensor:
    """(count,) log-probs of all response tokens; NaN for tokens in no batch."""
    logprobs_N = torch.full((count,), torch.nan)
    for batch in batches:
        logprobs_N[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch)
    return logprobs_N
