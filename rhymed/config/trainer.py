"""How the scored samples are trained on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rhymed.config.base import MOST_PROCESSES, MOST_STEPS
from rhymed.config.losses import Losses
from rhymed.config.parts.critic import Critic
from rhymed.config.parts.dynamic_sampling import DynamicSampling
from rhymed.config.parts.lora import Lora
from rhymed.config.parts.teacher import Teacher


class Trainer(Losses):
    epochs: int = Field(5, gt=0, le=MOST_STEPS, description="passes over the data")
    steps: int | None = Field(
        None, ge=0, le=MOST_STEPS, description="stop after this many steps, even inside an epoch; empty: no limit"
    )
    engine: Literal["torch", "trace"] = Field(
        "torch", description="trace: no model; weights are a few numbers that depend on every token trained"
    )
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = Field(
        "adamw", description="8bit, paged: from the package bitsandbytes; less memory for the optimizer's state"
    )
    lr: float = Field(1e-6, gt=0, description="learning rate of AdamW, its highest value")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="learning rate after the warm-up; linear, cosine: falls until the run's last step"
    )
    warmup_steps: int = Field(0, ge=0, description="training steps of linear warm-up to lr")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="linear, cosine: they end at this times lr")
    betas: tuple[float, float] = Field((0.9, 0.999), description="of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    overlap: bool = Field(
        False,
        description="compute the gradients of complete groups while the step's others are generated: shorter steps"
        " where the trainer has processors or GPUs of its own; 8 bytes of memory per trained weight",
    )
    minibatches: int = Field(1, gt=0, description="optimizer steps per training step")
    micro_tokens: int = Field(
        4096, gt=0, le=1 << 31, description="tokens per forward and backward pass, prompts included"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where the trainer computes. auto: cuda where torch finds a GPU"
    )
    gpus: int = Field(
        1,
        gt=0,
        le=MOST_PROCESSES,
        description="GPUs of each node that share the training; each has a rank, a process of its own",
    )
    nodes: int = Field(
        1, gt=0, le=MOST_PROCESSES, description="machines that share the training, with trainer.gpus GPUs each"
    )
    ranks: int = Field(
        1,
        gt=0,
        le=MOST_PROCESSES,
        description="with device = 'cpu': ranks on each node, processes that share the training",
    )
    gradient_checkpointing: bool = Field(
        False, description="keep only the inputs of layers: less memory, a third more time"
    )
    deterministic: bool = Field(
        False, description="GPU: deterministic kernels, so that equal samples give equal weights; slower"
    )
    checkpoint_every: int = Field(10, gt=0, description="training steps between checkpoints")
    keep_checkpoints: int = Field(2, gt=0, description="number of checkpoints to keep, the newest ones")
    async_checkpoints: bool = Field(
        True, description="write checkpoints from a copy in memory while the next steps are trained; false: no copy"
    )
    threads: int = Field(0, ge=0, le=MOST_PROCESSES, description="torch threads; 0: torch's default")
    stall_s: float = Field(
        3600.0,
        gt=0,
        description="seconds without progress of a step or of a checkpoint until the trainer is restarted",
    )
    lora: Lora | None = Field(None, description="see [trainer.lora]; without it, all weights are trained")
    dynamic_sampling: DynamicSampling = DynamicSampling()
    mismatch_warn: float = Field(0.05, gt=0, description="warn when mismatch_kl is higher (nats per token)")
    critic: Critic = Critic()
    teacher: Teacher = Teacher()

    @property
    def ranks_per_node(self) -> int:
        return self.ranks if self.device == "cpu" else self.gpus

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.nodes * self.ranks_per_node

    @property
    def whole_step(self) -> list[str]:
        """What needs all samples of a step before its first gradient."""
        recipe = self.recipe
        reasons = {
            f"trainer.minibatches = {self.minibatches} changes the weights within the step": self.minibatches > 1,
            f"trainer.algorithm = {self.algorithm!r} has a critic, which reads the whole step": recipe.critic,
            "trainer.teacher answers for the whole step": self.teacher.used,
            "trainer.whiten takes mean and deviation of the whole step": recipe.whiten,
            "trainer.advantage_scale = 'batch' takes the deviation of the whole step": recipe.advantage_scale
            == "batch",
        }
        return [why for why, applies in reasons.items() if applies]

    @property
    def filters_groups(self) -> bool:
        """Whether groups without signal are dropped, by the settings or by the algorithm."""
        enabled = self.dynamic_sampling.enabled
        return self.algorithm == "dapo" if enabled is None else enabled
