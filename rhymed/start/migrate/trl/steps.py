"""How many samples and updates a step has, and what is counted in steps: TRL -> ours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rhymed.start.migrate.entries import Entry, Item, Note, Put, chosen

DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "num_iterations": 1,
    "processes": 1,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "warmup_steps": 0,
    "lr_scheduler_type": "linear",
    "eval_strategy": "no",
}

BATCH = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_generations",
    "num_iterations",
    "processes",
)


@dataclass(frozen=True)
class Batch:
    """The values of `BATCH`, in its order."""

    per_device: int
    accumulation: int
    steps_per_generation: int | None
    generation_batch: int | None
    group: int
    iterations: int
    processes: int  # 0: on processors, one process

    @property
    def per_pass(self) -> int:
        """Samples of one forward and backward pass, over all processes."""
        return self.per_device * max(1, self.processes)

    @property
    def passes(self) -> int:
        """Per generation batch."""
        if self.steps_per_generation is None and self.generation_batch is not None:
            return max(1, self.generation_batch // self.per_pass)
        return self.steps_per_generation or self.accumulation

    @property
    def samples(self) -> int:
        return self.per_pass * self.passes

    @property
    def minibatches(self) -> int:
        return max(1, self.passes // self.accumulation)

    def steps(self, updates: float) -> int:
        """TRL's steps as ours, at least one."""
        return max(1, round(updates / (self.minibatches * self.iterations)))


def _batch(*values: Any) -> Iterator[Item]:
    batch = Batch(*values)
    yield Put("rollout.group_size", batch.group, of=("num_generations",))
    prompts = max(1, batch.samples // batch.group)
    yield Put("rollout.prompts_per_step", prompts, f"{batch.samples} samples / {batch.group} of each prompt")
    yield Put("trainer.minibatches", batch.minibatches, "updates per step", BATCH[1:4])
    if batch.samples % batch.group:
        why = f"{batch.samples} samples of a step are no multiple of {batch.group}; TRL refuses it, too"
        yield Note("num_generations", "unsupported", why)
    if batch.iterations > 1:
        yield Note(
            "num_iterations", "unsupported", "each sample is trained on once; trainer.minibatches divides a step"
        )


def _micro(per_device: int, response: int | None, prompt: int | None) -> Iterator[Item]:
    tokens = per_device * ((response or 512) + (prompt or 512))
    yield Put(
        "trainer.micro_tokens", tokens, f"{per_device} samples of full length; memory and speed only", BATCH[:1]
    )


def _length(epochs: float, updates: int, *values: Any) -> Iterator[Item]:
    whole = max(1, math.ceil(epochs))
    if updates > 0:
        batch = Batch(*values)
        yield Put("trainer.steps", batch.steps(updates), "in generation batches", ("max_steps",))
        yield Put("trainer.epochs", 1000, "trainer.steps ends the run", ("max_steps",))
    else:
        yield Put("trainer.epochs", whole)
        if whole != epochs:
            yield Note("num_train_epochs", "different", f"epochs are whole here: {epochs:g} became {whole}")


def _warmup(warmup: float, ratio: float | None, updates: int, *values: Any) -> Iterator[Item]:
    share = ratio or (warmup if 0 < warmup < 1 else 0)
    batch = Batch(*values)
    if not share:
        if warmup:
            yield Put("trainer.warmup_steps", batch.steps(warmup), of=("warmup_steps",))
    elif updates > 0:
        yield Put("trainer.warmup_steps", batch.steps(updates * share), f"{share:g} of the steps")
    else:
        name = "warmup_ratio" if ratio else "warmup_steps"
        why = (
            f"{share:g} of all steps: set trainer.warmup_steps to that share of the steps that `rhymed check` prints"
        )
        yield Note(name, "unknown", why)


def _schedule(name: Any, kwargs: dict[str, Any] | None) -> Iterator[Item]:
    kind = str(name).lower().rpartition(".")[2]
    known = {"linear": "linear", "constant": "constant", "constant_with_warmup": "constant", "cosine": "cosine"}
    known["cosine_with_min_lr"] = "cosine"
    written = yield from chosen(known, kind, "lr_scheduler_type", "constant")
    yield Put("trainer.schedule", written, of=("lr_scheduler_type",))
    given = kwargs or {}
    if given.get("min_lr_rate"):
        yield Put("trainer.min_lr_ratio", given["min_lr_rate"], of=("lr_scheduler_kwargs",))
    elif given.get("min_lr"):
        yield Note("lr_scheduler_kwargs", "unknown", f"set trainer.min_lr_ratio to {given['min_lr']} / trainer.lr")


def _evaluation(strategy: Any, every: float | None, samples: int | None, *values: Any) -> Iterator[Item]:
    """The datasets are found elsewhere."""
    batch, kind = Batch(*values), str(strategy).lower().rpartition(".")[2]
    if kind == "no":
        return
    yield Put("eval.samples", samples or batch.group, of=("num_generations_eval", "num_generations"))
    if kind == "steps" and every and every >= 1:
        yield Put("eval.every", batch.steps(every), of=("eval_steps",))
    else:
        yield Note(
            "eval_strategy", "unknown", "set eval.every, in steps: `rhymed check` prints the steps of an epoch"
        )


def _checkpoints(strategy: Any, every: float | None, keep: int | None, *values: Any) -> Iterator[Item]:
    kind = str(strategy or "steps").lower().rpartition(".")[2]
    if kind == "steps" and every and every >= 1:
        yield Put("trainer.checkpoint_every", Batch(*values).steps(every))
    elif strategy is not None and kind != "steps":
        why = (
            "checkpoints are written every trainer.checkpoint_every steps: a run continues from them after a failure"
        )
        yield Note("save_strategy", "different", why)
    if keep:
        yield Put("trainer.keep_checkpoints", keep)


ENTRIES = (
    Entry(BATCH, ("rollout.prompts_per_step", "rollout.group_size"), _batch),
    Entry(
        ("per_device_train_batch_size", "max_completion_length", "max_prompt_length"),
        ("trainer.micro_tokens",),
        _micro,
    ),
    Entry(("num_train_epochs", "max_steps", *BATCH), ("trainer.epochs",), _length, named=2),
    Entry(("warmup_steps", "warmup_ratio", "max_steps", *BATCH), ("trainer.warmup_steps",), _warmup, named=2),
    Entry(("lr_scheduler_type", "lr_scheduler_kwargs"), ("trainer.schedule",), _schedule),
    Entry(("eval_strategy", "eval_steps", "num_generations_eval", *BATCH), ("eval.every",), _evaluation, named=3),
    Entry(
        ("save_strategy", "save_steps", "save_total_limit", *BATCH),
        ("trainer.checkpoint_every",),
        _checkpoints,
        named=3,
    ),
)
