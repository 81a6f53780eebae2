"""One training step: scored groups in, changed weights and metrics out. Blocking; lives on one thread.

Owns policy, optimizer and position. Two learners with equal state that are given equal samples end up with equal
bits. A sample whose advantage is 0 adds nothing to the gradient, so without a KL term it is not computed at all; it
still counts in the loss's mean. It does not know where samples come from or where weights go.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rhymed.config import Config
from rhymed.errors import CheckpointError
from rhymed.inputs.models import resolve_model
from rhymed_store.client import StoredSample
from rhymed_workers.trainer import grpo
from rhymed_workers.trainer import samples as lesson
from rhymed_workers.trainer.packing import MicroBatch, Sequences, micro_batches
from rhymed_workers.trainer.policy import Policy
from rhymed_workers.trainer.samples import Progress

log = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "chat_template*", "*.model")
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
OPTIMIZER = "optimizer.state"
"""A safetensors file; were it called so, engines would take it for a part of the model beside it."""


@dataclass
class Sums:
    """Running sums over the tokens of a step."""

    tokens: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0
    mismatch: float = 0.0
    compared: int = 0  # tokens that `mismatch` is about
    computed: int = 0  # tokens through the model, prompts included, padding not
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0  # optimizer steps that were not finite


@dataclass(frozen=True)
class Tokens:
    """Of all response tokens of a step, the samples' end to end. Axis N."""

    advantages_N: Tensor
    engine_N: Tensor  # log-probs as the engine saw them
    weights_N: Tensor
    old_N: Tensor | None  # the trainer's before the first update; None: the same as in the only update
    reference_N: Tensor | None


class Learner:
    """`source`: folder of the model that training began with, for its tokenizer files."""

    reads_logprobs = True

    def __init__(
        self, config: Config, policy: Policy, reference: Policy | None = None, source: Path | None = None
    ) -> None:
        self._config = config.trainer
        self._staleness = config.schedule.max_staleness
        self.policy, self._reference, self._source = policy, reference, source
        self.dtype = config.model.dtype  # of what is published
        self.steps = 0  # trained so far; also the version of the weights
        settings = self._config
        self._objective = grpo.Objective(
            settings.clip_eps_low, settings.clip_eps_high, settings.kl_coef, settings.tis_cap
        )
        self._optimizer = torch.optim.AdamW(
            policy.model.parameters(),
            lr=settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @classmethod
    def restore(cls, config: Config, folder: Path | None) -> Learner:
        """From the folder of a checkpoint; None: from the model. Raises `CheckpointError`, `ConfigError`."""
        if config.trainer.threads:
            torch.set_num_threads(config.trainer.threads)
        source, temperature = resolve_model(config), config.rollout.temperature
        policy = Policy.load(folder or source, temperature)
        reference = Policy.load(source, temperature) if config.trainer.kl_coef else None
        learner = cls(config, policy, reference, source)
        if folder is not None:
            learner.load(folder)
        return learner

    def __str__(self) -> str:
        return type(self.policy.model).__name__

    def tensors(self) -> dict[str, Tensor]:
        return self.policy.tensors()

    def digest(self) -> str:
        """Not told: reading all weights after each step would take a second a gigabyte."""
        return ""

    # -- training -----------------------------------------------------------------------------------------------

    def check(self, step: int, samples: Sequence[StoredSample]) -> None:
        """Raises `StalenessBroken`."""
        lesson.check_staleness(step, samples, self._staleness)

    def train(
        self, samples: Sequence[StoredSample], progress: Progress = lambda done, total: None
    ) -> dict[str, float]:
        """Train the next step on these and return its metrics. Groups with less than two scored samples are left
        out."""
        self.check(self.steps, samples)
        started = time.perf_counter()
        torch.manual_seed(self.steps)
        chosen, skipped = lesson.scored_groups(samples)
        sums = self._update(chosen, progress) if chosen else Sums()
        self.steps += 1
        seconds = time.perf_counter() - started
        metrics = lesson.describe(self.steps - 1, samples, chosen) | self._measure(sums)
        metrics |= {
            "actor/groups_skipped": float(skipped),
            "timing_s/train": seconds,
            "perf/train_tokens_per_s": sums.computed / seconds,
        }
        return metrics

    def _update(self, samples: Sequence[StoredSample], progress: Progress) -> Sums:
        groups = torch.tensor(np.unique([s.info.id.prompt for s in samples], return_inverse=True)[1])
        rewards = torch.tensor([sample.info.reward for sample in samples], dtype=torch.float64)
        advantages_B = grpo.advantages(rewards, groups, std_normalise=self._config.std_normalise)
        useful_B = (advantages_B != 0).numpy() | (self._config.kl_coef > 0)
        sequences = [Sequences(_given(sample.prompt_tokens), sample.tokens) for sample in samples]
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
        """No sample had a signal: engine and trainer are compared all the same, on one micro-batch."""
        batches = micro_batches(sequences, range(len(samples)), self._config.micro_tokens)
        if batches:
            engine_N = torch.from_numpy(np.concatenate([_given(sample.logprobs) for sample in samples]))
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
        weights = [grpo.token_weights(lengths_B[torch.from_numpy(part)], self._config.norm) for part in parts]
        return Tokens(
            advantages_B.repeat_interleave(lengths_B),
            torch.from_numpy(np.concatenate([_given(sample.logprobs) for sample in samples])),
            torch.cat(weights),
            _logprobs(self.policy, batches, int(lengths_B.sum())) if len(parts) > 1 else None,
            _logprobs(self._reference, batches, int(lengths_B.sum())) if self._reference else None,
        )

    def _accumulate(self, batch: MicroBatch, tokens: Tokens, sums: Sums) -> float:
        def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
            old_N = logp_N.detach() if tokens.old_N is None else tokens.old_N[flat_N]
            engine_N = tokens.engine_N[flat_N]
            reference_N = None if tokens.reference_N is None else tokens.reference_N[flat_N]
            found = grpo.terms(logp_N, old_N, engine_N, tokens.advantages_N[flat_N], self._objective, reference_N)
            sums.entropy += float(entropy_N.sum())
            sums.clipped += float(found.clipped_N.sum())
            self._mismatch(engine_N, old_N, sums)
            sums.kl += 0.0 if found.kl_N is None else float(found.kl_N.sum())
            return (found.loss_N * tokens.weights_N[flat_N]).sum()

        value = self.policy.backward(batch, loss)
        sums.tokens += len(batch.target_N)
        sums.computed += int((batch.segments_BT >= 0).sum())
        sums.loss += value
        return value

    def _optimize(self, loss: float, sums: Sums) -> None:
        """Clip and step. What is not finite must not reach the weights: the update is skipped and the run goes on."""
        parameters = list(self.policy.model.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # nothing had a signal: momentum moves the weights all the same
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
        """Of the next step: linear warm-up, then constant."""
        return self._config.lr * min(1.0, (self.steps + 1) / max(1, self._config.warmup_steps))

    # -- metrics ------------------------------------------------------------------------------------------------

    def _measure(self, sums: Sums) -> dict[str, float]:
        """What was not computed is left out, rather than told as 0."""
        updates = max(1, len(sums.grad_norms) + sums.skipped)
        found = {"actor/loss": sums.loss / updates, "actor/lr": float(self._optimizer.param_groups[0]["lr"])}
        found["actor/skipped_updates"] = float(sums.skipped)
        if sums.grad_norms:
            found["actor/grad_norm"] = float(np.mean(sums.grad_norms))
        if sums.tokens:
            found |= {
                "actor/tokens": float(sums.tokens),
                "actor/entropy": sums.entropy / sums.tokens,
                "actor/pg_clipfrac": sums.clipped / sums.tokens,
            }
            if self._reference is not None:
                found["actor/kl"] = sums.kl / sums.tokens
        if sums.compared:
            found["mismatch_kl/mean"] = sums.mismatch / sums.compared
            self._warn_of_mismatch(found["mismatch_kl/mean"])
        return found

    def _warn_of_mismatch(self, mean: float) -> None:
        if mean > self._config.mismatch_warn:
            log.warning(
                "step %d: mismatch_kl/mean %.4f is above trainer.mismatch_warn = %g: the engine samples from other"
                " probabilities than the trainer computes",
                self.steps,
                mean,
                self._config.mismatch_warn,
            )

    # -- state --------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """A Hugging Face folder (with the tokenizer files of `source`) and what a resume needs beside it."""
        from safetensors.torch import save_file

        self.policy.model.save_pretrained(folder)
        for pattern in TOKENIZER_FILES:
            for file in self._source.glob(pattern) if self._source else ():
                shutil.copyfile(file, folder / file.name)
        state = {
            f"{key}.{name}": self._optimizer.state[parameter][key]
            for name, parameter in self.policy.model.named_parameters()
            if parameter in self._optimizer.state
            for key in MOMENTS
        }
        save_file({**state, "rng": torch.get_rng_state()}, folder / OPTIMIZER)
        position = {"steps": self.steps, "lr": self._optimizer.param_groups[0]["lr"]}
        (folder / "trainer.json").write_text(json.dumps(position))

    def load(self, folder: Path) -> None:
        """The optimizer's side of `save`; the policy was loaded from the same folder. Raises `CheckpointError`."""
        from safetensors.torch import load_file

        try:
            position = json.loads((folder / "trainer.json").read_text())
            state = load_file(folder / OPTIMIZER)
            torch.set_rng_state(state.pop("rng"))
            for name, parameter in self.policy.model.named_parameters():
                if f"step.{name}" in state:
                    self._optimizer.state[parameter] = {key: state.pop(f"{key}.{name}") for key in MOMENTS}
            self.steps = int(position["steps"])
            for group in self._optimizer.param_groups:
                group["lr"] = position["lr"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{folder}: not a checkpoint of this trainer: {error!r}") from error
        if state:
            raise CheckpointError(f"{folder}: state of parameters that the model does not have: {sorted(state)[:3]}")


def _given(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    assert array is not None, "samples are fetched with log-probs and prompt tokens"
    return array


def _logprobs(policy: Policy, batches: Sequence[MicroBatch], count: int) -> Tensor:
    """(count,) log-probs of all response tokens; NaN where no batch has them."""
    found_N = torch.full((count,), torch.nan)
    for batch in batches:
        found_N[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch)
    return found_N
