"""The learner with torch: scored groups in, changed weights and metrics out. Blocking; runs on one thread.

Owns policy, optimizer and position. Two learners with equal state and equal samples end up with equal bits. Knows no
algorithm: `batch` makes the step's tensors, `algorithms` the loss. Does not know where samples come from or where
weights go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rhymed.config import Config, Trainer
from rhymed.inputs.models import resolve_model
from rhymed_store.client import StoredSample
from rhymed_workers.trainer import state
from rhymed_workers.trainer.algorithms.losses import token_losses
from rhymed_workers.trainer.batch import Batch, LogProbs, assemble, engine_logprobs
from rhymed_workers.trainer.critic.critic import Critic
from rhymed_workers.trainer.optim import optimizer, schedule
from rhymed_workers.trainer.policy.backbone import Compute
from rhymed_workers.trainer.policy.lora import restore
from rhymed_workers.trainer.policy.packing import MicroBatch, micro_batches
from rhymed_workers.trainer.policy.policy import Policy, Scores
from rhymed_workers.trainer.policy.runtime import free_cached
from rhymed_workers.trainer.ranks import passes
from rhymed_workers.trainer.ranks.group import ALONE, Alone
from rhymed_workers.trainer.samples import Progress, check_staleness, readable, sample_metrics, scored_groups
from rhymed_workers.trainer.saving.checkpoints import Finish
from rhymed_workers.trainer.sums import Sums
from rhymed_workers.trainer.teacher.build import build as build_teacher
from rhymed_workers.trainer.teacher.distillation import Distillation, Targets
from rhymed_workers.trainer.teacher.exact import distil, follow
from rhymed_workers.trainer.tokenstats.step import StepStats
from rhymed_workers.trainer.tokenstats.take import Taken
from rhymed_workers.trainer.turns import sequences_of

log = logging.getLogger(__name__)


class TorchLearner:
    """`source`: folder of the model that training started from, for its tokenizer files. `dtype`: of the published
    weights.
    """

    reads_logprobs = True

    def __init__(
        self,
        config: Trainer,
        policy: Policy,
        reference: Scores | None = None,
        source: Path | None = None,
        critic: Critic | None = None,
        *,
        max_staleness: int,
        max_prompt_length: int,
        max_response_length: int,
        dtype: str,
        distillation: Distillation | None = None,
        ranks: Alone = ALONE,
    ) -> None:
        self._ranks = ranks
        self._config, self._recipe, self._max_staleness = config, config.recipe, max_staleness
        self._longest_prompt, self._longest = max_prompt_length, max_response_length
        self.policy, self._reference, self.critic, self._source = policy, reference, critic, source
        self.dtype, self._distillation = dtype, distillation
        self.reads_rows = distillation is not None and distillation.reads_rows
        self.steps = 0  # trained so far; also the version of the weights
        self._optimizer = optimizer.build(config, policy.trained())
        self._run_steps = 0  # of the whole run; 0: unknown
        self.colocated = False  # engines use this GPU between steps
        self.takes_token_stats = False
        self.token_stats: StepStats | None = None  # of the last step
        self._taken: Taken | None = None  # of the step in progress

    @classmethod
    def restore(cls, config: Config, folder: Path | None, ranks: Alone = ALONE) -> TorchLearner:
        """From a checkpoint's folder, or without one from the model. Raises `CheckpointError`, `ConfigError`."""
        if config.trainer.threads:
            torch.set_num_threads(config.trainer.threads)
        source = resolve_model(config)
        compute = Compute.of(config.trainer, config.model.train_dtype)
        policy, reference = restore(config, source, folder, compute, ranks.mesh)
        learner = cls(
            config.trainer,
            policy,
            reference,
            source,
            Critic.at_start(config, compute, ranks) if config.trainer.recipe.critic else None,
            max_staleness=config.schedule.max_staleness,
            max_prompt_length=config.rollout.max_prompt_length,
            max_response_length=config.rollout.max_response_length,
            dtype=policy.published_dtype or config.model.dtype,
            distillation=build_teacher(config, policy, compute, ranks),
            ranks=ranks,
        )
        learner.colocated = config.schedule.colocate
        learner.takes_token_stats = config.store.token_stats_bytes > 0
        if folder is not None:
            learner.load(folder)
        return learner

    def __str__(self) -> str:
        return type(self.policy.model).__name__

    def tensors(self) -> dict[str, Tensor]:
        """All ranks call it; the first one gets them."""
        return self.policy.tensors(getattr(torch, self.dtype))

    def metadata(self) -> dict[str, str]:
        return self.policy.metadata()

    def digest(self) -> str:
        """Empty: reading all weights after each step would take a second per gigabyte."""
        return ""

    def allowed(self, step: int, samples: Sequence[StoredSample]) -> list[StoredSample]:
        longest = self._longest_prompt, self._longest
        return readable(step, samples, self._max_staleness, self.policy.vocabulary, *longest)

    def train(
        self,
        samples: Sequence[StoredSample],
        progress: Progress = lambda done, total: None,
        run_steps: int = 0,
    ) -> dict[str, float]:
        """Train the next step and return its metrics. Groups with too few scored samples are left out."""
        check_staleness(self.steps, samples, self._max_staleness)
        started, self._run_steps, self.token_stats = time.perf_counter(), run_steps, None
        torch.manual_seed(self.steps)
        chosen, unscored = scored_groups(samples, self._recipe.least_group)
        sums = self._update(chosen, progress) if chosen else Sums()
        self.steps += 1
        seconds = time.perf_counter() - started
        metrics = sample_metrics(self.steps - 1, samples, chosen) | sums.metrics()
        if self._recipe.advantage == "none":
            metrics.pop("reward/flat_groups", None)  # it warns of rewards without a signal
        self._warn_of_mismatch(metrics.get("mismatch_kl/mean", 0.0))
        metrics |= {
            "actor/lr": float(self._optimizer.param_groups[0]["lr"]),
            "actor/groups_unscored": float(unscored),
            "timing_s/train": seconds,
            "perf/train_tokens_per_s": sums.computed / seconds,
        }
        if self.colocated:
            free_cached(self.policy.device)
        return metrics

    def _update(self, samples: Sequence[StoredSample], progress: Progress) -> Sums:
        taught = self._distillation.ask(samples, progress).to(self.policy.device) if self._distillation else None
        values = self.critic.values if self.critic else None
        logs = (self._logprobs, self._reference_logprobs, values)
        batch = assemble(samples, self._config, self._longest, *logs, dense=taught is not None).to(self.policy.device)
        self._taken = Taken(len(batch.sample_N), self.policy.device) if self.takes_token_stats else None
        updates = [self._ranks.share(update) for update in batch.updates]
        sums, total, done = Sums(), sum(map(len, updates)), 0
        frozen = self.critic is not None and self.critic.alone(self.steps)
        if frozen or not total:
            self._compare(samples, sums)
        for update in updates:
            loss = torch.zeros((), dtype=torch.float64, device=self.policy.device)
            for micro, counts in update:
                progress(done, total)
                done += 1
                if not counts:
                    self._follow(micro, taught, frozen=frozen)
                    continue
                if not frozen:
                    loss += self._accumulate(micro, batch, sums, taught)
                if self.critic and batch.targets:
                    self.critic.accumulate(micro, batch.targets)
                sums.computed += micro.tokens
            if not frozen:
                self._optimize(self._ranks.sum([loss.item()])[0], sums)
            if self.critic:
                self.critic.update()
        progress(total, total)
        sums.together(self._ranks)
        self.token_stats = self._taken.of(self.steps, samples, self._ranks) if self._taken else None
        if self.critic and batch.targets:
            sums.extra |= self.critic.metrics(batch.targets)
        if taught is not None:
            sums.extra |= taught.metrics(self._ranks)
        sums.extra |= batch.metrics
        return sums

    def _follow(self, micro: MicroBatch, taught: Targets | None, *, frozen: bool) -> None:
        """The passes of a micro-batch, for the other ranks' sake."""
        if not frozen and not self._only_taught(taught):
            self.policy.follow(micro)
        if not frozen and taught is not None and taught.exact:
            follow(self.policy, micro, taught)
        if self.critic:
            self.critic.follow(micro)

    def _accumulate(self, micro: MicroBatch, batch: Batch, sums: Sums, taught: Targets | None) -> Tensor:
        def loss(logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> Tensor:
            tokens = batch.tokens(logp_N, flat_N)
            if taught is not None and not taught.exact:
                tokens = taught.advise(tokens, flat_N)
            found = token_losses(tokens, self._recipe)
            sums.add(found, entropy_N)
            sampled = self._recipe.loss != "likelihood"  # else no engine wrote the tokens
            if sampled:
                sums.compare(tokens.engine_N, tokens.old_N)
            if self._taken:
                self._taken.add(tokens, entropy_N, flat_N, sampled=sampled)
            return (found.loss_N * batch.weights_N[flat_N]).sum()

        recipe, alone = self._recipe, self._only_taught(taught)
        value = torch.zeros((), dtype=torch.float64, device=self.policy.device)
        if not alone:
            whole = recipe.whole_sequences(updates=len(batch.updates))
            value = value + self.policy.backward(micro, loss, whole_sequences=whole)
        if taught is not None and taught.exact:
            value = value + distil(self.policy, micro, batch, taught, sums, alone=alone)
        sums.loss += value.double()
        return value

    def _only_taught(self, taught: Targets | None) -> bool:
        """An exact divergence is the only loss."""
        return taught is not None and taught.exact and self._recipe.advantage == "none" and not self._recipe.dense

    def _compare(self, samples: Sequence[StoredSample], sums: Sums) -> None:
        """No sample had a signal: engine and trainer are still compared, on one micro-batch."""
        sequences = sequences_of(samples)
        batches = micro_batches(sequences, range(len(sequences)), self._config.micro_tokens)
        if not batches:
            return
        logp_N = self.policy.logprobs(batches[0]).cpu()
        if self._ranks.rank == 0:
            sums.compare(engine_logprobs(samples)[batches[0].flat_N], logp_N)

    def _logprobs(self, batches: Sequence[MicroBatch], count: int) -> Tensor:
        return passes.logprobs(self.policy, self._ranks, batches, count)

    @property
    def _reference_logprobs(self) -> LogProbs | None:
        return partial(passes.logprobs, self._reference, self._ranks) if self._reference else None

    def _optimize(self, loss: float, sums: Sums) -> None:
        for parameter in self.policy.trained():
            if parameter.grad is None:  # no sample had a signal: momentum still moves the weights
                parameter.grad = torch.zeros_like(parameter)
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
        norm = optimizer.step(self._optimizer, loss, self._config.max_grad_norm, f"step {self.steps + 1}")
        if norm is None:
            sums.skipped += 1
        else:
            sums.grad_norms.append(norm)

    @property
    def lr(self) -> float:
        """Of the next step."""
        return self._config.lr * schedule.factor(self._config, self.steps, self._run_steps)

    def _warn_of_mismatch(self, mean: float) -> None:
        if mean > self._config.mismatch_warn and self._ranks.rank == 0:
            log.warning(
                "step %d: mismatch_kl/mean %.4f is above trainer.mismatch_warn = %g: the probabilities of engine and"
                " trainer differ",
                self.steps,
                mean,
                self._config.mismatch_warn,
            )

    def snapshot(self, folder: Path, *, copy: bool = False) -> Finish:
        """A model's or an adapter's folder with what a resume needs. All ranks call it, and what it returns."""
        writes = [self.policy.snapshot(copy=copy)]
        writes.append(state.snapshot(self.policy.model, self._optimizer, self.steps, self._ranks, copy=copy))
        if self.critic:
            writes.append(self.critic.snapshot(self.steps, copy=copy))

        def finish() -> dict[str, str]:
            for write in writes:
                write(folder)
            if self._source and self._ranks.rank == 0:
                state.copy_tokenizer(self._source, folder)
            return {}

        return finish

    def save(self, folder: Path) -> None:
        self.snapshot(folder)()

    def load(self, folder: Path) -> None:
        """All but the policy, which was loaded from the same folder. Raises `CheckpointError`."""
        self.steps = state.load(folder, self.policy.model, self._optimizer)
        if self.critic:
            self.critic.load(folder, self.steps)
