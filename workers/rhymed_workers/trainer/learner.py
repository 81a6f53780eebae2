"""The learner with torch: scored groups in, changed weights and metrics out. Blocking; runs on one thread.

Owns policy, optimizer and position. Two learners with equal state and equal samples end up with equal bits. Knows no
algorithm: `batch` makes the step's tensors, `algorithms` the loss. Does not know where samples come from or where
weights go.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rhymed.core.config import Config
from rhymed.inputs.models import make_readable
from rhymed.inputs.quantised import base_of
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.critic import Critic
from rhymed_workers.trainer.gradients import Gradients
from rhymed_workers.trainer.optim import optimizer as optimizers
from rhymed_workers.trainer.optim import state
from rhymed_workers.trainer.overlap.groups import GroupGradients
from rhymed_workers.trainer.policy.backbone import Compute, free_cached
from rhymed_workers.trainer.policy.lora import restore
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.policy.policy import Policy, Scores
from rhymed_workers.trainer.ranks import ALONE, Alone
from rhymed_workers.trainer.samples import Progress, check_staleness, readable, sample_metrics, scored_groups
from rhymed_workers.trainer.saving import Finish
from rhymed_workers.trainer.teacher.distillation import Distillation, Targets
from rhymed_workers.trainer.teacher.distillation import build as build_teacher
from rhymed_workers.trainer.tokenstats import Sums

log = logging.getLogger(__name__)


class TorchLearner:
    """`source`: folder of the model that training started from, for its tokenizer files."""

    reads_logprobs = True

    def __init__(
        self,
        config: Config,
        policy: Policy,
        reference: Scores | None = None,
        source: Path | None = None,
        critic: Critic | None = None,
        *,
        distillation: Distillation | None = None,
        ranks: Alone = ALONE,
    ) -> None:
        rollout, scorers = config.rollout, {scorer.label: scorer.weight for scorer in config.reward.all}
        self._ranks, self._rollout, self._schedule = ranks, rollout, config.schedule
        self._config, self._recipe = config.trainer, config.trainer.recipe
        self.policy, self.critic, self._source = policy, critic, source
        self._gradients = Gradients(
            self._config, rollout.max_response_length, policy, reference, ranks=ranks, scorers=scorers
        )
        self._groups = GroupGradients(
            self._gradients,
            self._recipe,
            policy,
            ranks,
            samples=rollout.prompts_per_step * rollout.group_size,
            longest=rollout.max_response_length,
        )
        self.dtype, self._distillation = policy.published_dtype or config.model.dtype, distillation
        self.reads_rows = distillation is not None and distillation.reads_rows
        self.steps = 0  # trained so far; also the version of the weights
        self._optimizer = optimizers.build(self._config, policy.trained())
        self._run_steps = 0  # of the whole run; 0: unknown

    @classmethod
    def restore(cls, config: Config, folder: Path | None, ranks: Alone = ALONE) -> TorchLearner:
        """From a checkpoint's folder, or without one from the model. Raises `CheckpointError`, `ConfigError`."""
        if config.trainer.threads:
            torch.set_num_threads(config.trainer.threads)
        source = base_of(config)
        compute = Compute.of(config.trainer, config.model.train_dtype)
        policy, reference = restore(config, source, folder, compute, ranks.mesh)
        learner = cls(
            config,
            policy,
            reference,
            source,
            Critic.at_start(config, compute, ranks) if config.trainer.recipe.critic else None,
            distillation=build_teacher(config, policy, compute, ranks),
            ranks=ranks,
        )
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
        longest = self._rollout.max_prompt_length, self._rollout.max_response_length
        return readable(step, samples, self._schedule.max_staleness, self.policy.vocabulary, *longest)

    def begin(
        self, step: int, samples: Sequence[StoredSample], progress: Progress = lambda done, total: None
    ) -> None:
        """Compute the gradients of these whole groups, if `step` is the next step and `trainer.overlap` is set."""
        if step == self.steps and self._config.overlap:
            self._groups.begin(step, samples, progress)

    def train(
        self,
        samples: Sequence[StoredSample],
        progress: Progress = lambda done, total: None,
        run_steps: int = 0,
    ) -> dict[str, float]:
        """Train the next step and return its metrics. Groups with too few scored samples are left out."""
        check_staleness(self.steps, samples, self._schedule.max_staleness)
        started, self._run_steps = time.perf_counter(), run_steps
        torch.manual_seed(self.steps)
        chosen, unscored = scored_groups(samples, self._recipe.least_group)
        update = self._update_by_groups if self._config.overlap else self._update
        sums = update(chosen, progress) if chosen else Sums()
        self.steps += 1
        seconds = time.perf_counter() - started
        metrics = sample_metrics(self.steps - 1, samples, chosen) | sums.metrics(self._recipe)
        if self._recipe.advantage == "none":
            metrics.pop("reward/flat_groups", None)  # it warns of rewards without a signal
        self._warn_of_mismatch(metrics.get("mismatch_kl/mean", 0.0))
        metrics |= {
            "actor/lr": float(self._optimizer.param_groups[0]["lr"]),
            "actor/groups_unscored": float(unscored),
            "timing_s/compute": seconds,
            "perf/train_tokens_per_s": sums.computed / (seconds + sums.extra.get("timing_s/overlap", 0.0)),
        }
        if self._schedule.colocate:
            free_cached(self.policy.device)
        return metrics

    def _update(self, samples: Sequence[StoredSample], progress: Progress) -> Sums:
        taught = self._distillation.ask(samples, progress).to(self.policy.device) if self._distillation else None
        values = self.critic.values if self.critic else None
        batch = self._gradients.assemble(samples, values, dense=taught is not None)
        updates = [self._ranks.share(update) for update in batch.updates]
        sums, total, done = Sums(), sum(map(len, updates)), 0
        frozen = self.critic is not None and self.critic.alone(self.steps)
        if frozen or not total:
            self._gradients.compare(samples, sums)
        for update in updates:
            loss = torch.zeros((), dtype=torch.float64, device=self.policy.device)
            for micro, counts in update:
                progress(done, total)
                done += 1
                if not counts:
                    self._follow(micro, taught, frozen=frozen)
                    continue
                if not frozen:
                    loss += self._gradients.accumulate(micro, batch, sums, taught)
                if self.critic and batch.targets:
                    self.critic.accumulate(micro, batch.targets)
                sums.computed += micro.tokens
            if not frozen:
                self._optimize(self._ranks.sum([loss.item()])[0], sums)
            if self.critic:
                self.critic.update()
        progress(total, total)
        sums.together(self._ranks)
        if self.critic and batch.targets:
            sums.extra |= self.critic.metrics(batch.targets)
        if taught is not None:
            sums.extra |= taught.metrics(self._ranks)
        sums.extra |= batch.metrics
        return sums

    def _update_by_groups(self, samples: Sequence[StoredSample], progress: Progress) -> Sums:
        """With the gradients of those groups that `begin` knows already."""
        sums = self._groups.finish(self.steps, samples, progress)
        self._optimize(float(sums.loss), sums)
        return sums

    def _follow(self, micro: MicroBatch, taught: Targets | None, *, frozen: bool) -> None:
        """The passes of a micro-batch, for the other ranks' sake."""
        if not frozen:
            self._gradients.follow(micro, taught)
        if self.critic:
            self.critic.follow(micro)

    def _optimize(self, loss: float, sums: Sums) -> None:
        for parameter in self.policy.trained():
            if parameter.grad is None:  # no sample had a signal: momentum still moves the weights
                parameter.grad = torch.zeros_like(parameter)
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
        norm = optimizers.step(self._optimizer, loss, self._config.max_grad_norm, f"step {self.steps + 1}")
        if norm is None:
            sums.skipped += 1
        else:
            sums.grad_norms.append(norm)

    @property
    def lr(self) -> float:
        """Of the next step."""
        return self._config.lr * optimizers.lr_factor(self._config, self.steps, self._run_steps)

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
            names = [name for write in writes for name in write(folder)]
            if self._source and self._ranks.rank == 0:
                names += state.copy_tokenizer(self._source, folder)
                make_readable(folder)
            return dict.fromkeys(names, "")

        return finish

    def save(self, folder: Path) -> None:
        self.snapshot(folder)()

    def load(self, folder: Path) -> None:
        """All but the policy, which was loaded from the same folder. Raises `CheckpointError`."""
        self.steps = state.load(folder, self.policy.model, self._optimizer)
        if self.critic:
            self.critic.load(folder, self.steps)
