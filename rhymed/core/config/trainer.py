"""How the scored samples are trained on: `[trainer]` and its tables.

`Trainer` is the section. Its tables are the teacher, dynamic sampling, the critic and LoRA; `Losses` has the keys
that make the loss.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rhymed.core.algorithms import (
    ALGORITHMS,
    SETTINGS,
    Advantage,
    Aggregation,
    Correction,
    Estimator,
    Loss,
    Place,
    Ratio,
    Recipe,
    Scale,
    expand,
)
from rhymed.core.config.base import MOST_PROCESSES, MOST_STEPS, Section

# The teacher of distillation: a model, a server, or the policy itself with a demonstration in its prompt.

TEMPLATE = (
    "{prompt}\n\nHere is an example of a right response:\n\n{demonstration}\n\n"
    "Now answer with a response of your own."
)

OF_SERVERS = ("served", "key_variable", "concurrency", "timeout_s", "patience_s")
"""Keys that only a teacher with a url has."""


class Teacher(Section):
    """For `trainer.algorithm = "opd"` or "opsd"; with another algorithm, an addition to its advantages."""

    model: str = Field(
        "", description="a local teacher: folder, GGUF file, hub id, or a known name, see docs/models.md"
    )
    revision: str = Field("", description="hub id: branch, tag or commit; empty: main")
    url: str = Field(
        "",
        pattern=r"^(https?://[^\s@]+)?$",
        description="a teacher on a vLLM server with the OpenAI API, e.g. http://10.0.0.1:8000/v1",
    )
    served: str = Field("", description="url: the model's name on the server; empty: its only one")
    key_variable: str = Field(
        "TEACHER_API_KEY",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="url: environment variable that holds the API key, if the server wants one",
    )
    concurrency: int = Field(16, gt=0, description="url: requests at the same time, one sample each")
    timeout_s: float = Field(120.0, gt=0, description="url: time limit of one request")
    patience_s: float = Field(
        600.0, ge=0, description="url: seconds for which failed requests are repeated before the trainer gives up"
    )
    weights: Literal["step", "initial"] = Field(
        "step", description="opsd: the policy at the start of each step, or the model that training started from"
    )
    demonstration: str = Field("", description="column that the teacher is shown; empty: none")
    template: str = Field(
        TEMPLATE, description="user message of the teacher with a demonstration; {prompt} is that of the policy"
    )
    system: str = Field("", description="system message of the teacher, in place of the policy's; empty: the same")
    divergence: Literal["reverse", "forward", "mixed"] = Field(
        "reverse", description="KL(policy || teacher), KL(teacher || policy), or both against their mixture"
    )
    beta: float = Field(0.5, gt=0, lt=1, description="mixed: the teacher's share of the mixture")
    over: Literal["sampled", "vocabulary", "topk"] | None = Field(
        None,
        description="sampled: policy gradient of the sampled tokens, reverse only; vocabulary: exact, not with url;"
        " topk: the teacher's likeliest tokens, forward with url only; empty: the first of them that is possible",
    )
    topk: int = Field(20, gt=0, description="topk: tokens; vllm serve allows --max-logprobs, 20 by default")
    coef: float = Field(1.0, gt=0, description="weight of the divergence")

    @property
    def named(self) -> bool:
        """A model other than the policy."""
        return bool(self.model or self.url)

    @property
    def shows(self) -> bool:
        """The teacher's prompts are not the policy's."""
        return bool(self.demonstration or self.system)

    @property
    def used(self) -> bool:
        """Whether there is a teacher at all."""
        return self.named or self.shows

    @property
    def tokens(self) -> Literal["sampled", "vocabulary", "topk"]:
        """`over`, decided."""
        if self.over is not None:
            return self.over
        if self.divergence == "reverse":
            return "sampled"
        return "topk" if self.url else "vocabulary"

    @property
    def unused(self) -> list[str]:
        """Keys that were changed and have no effect, each with what it needs."""
        needs = {
            "revision": (bool(self.model), "model"),
            **dict.fromkeys(OF_SERVERS, (bool(self.url), "url")),
            "weights": (not self.named, "the policy as its own teacher (opsd)"),
            "template": (bool(self.demonstration), "demonstration"),
            "beta": (self.divergence == "mixed", "divergence = 'mixed'"),
            "topk": (self.tokens == "topk", "over = 'topk'"),
        }
        teacher = (self.used, "a teacher: model, url, demonstration or system")
        found = [(name, *needs.get(name, teacher)) for name in self.changed()]
        return [f"{name} needs {need}" for name, met, need in found if not met]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.model and self.url:
            raise ValueError("model and url name two teachers: leave one out")
        if self.tokens == "sampled" and self.divergence != "reverse":
            raise ValueError(
                f"over = 'sampled' is a policy gradient of the reverse divergence: divergence = {self.divergence!r}"
                " needs the teacher's other tokens (over = 'vocabulary', or 'topk' with url)"
            )
        if self.tokens == "vocabulary" and self.url:
            raise ValueError(
                "over = 'vocabulary' needs all of the teacher's log-probs, which a server does not send: name the"
                " teacher by model, or use over = 'topk' with divergence = 'forward', or 'sampled' with 'reverse'"
            )
        if self.tokens == "topk" and not (self.url and self.divergence == "forward"):
            raise ValueError("over = 'topk' is for url and divergence = 'forward'; elsewhere use 'vocabulary'")
        if "{demonstration}" not in self.template:
            raise ValueError("template must contain {demonstration}, and {prompt} for the policy's user message")
        if unused := self.unused:
            raise ValueError("; ".join(unused))
        return self


# `[trainer.dynamic_sampling]`: groups without signal are dropped and replaced.


class DynamicSampling(Section):
    enabled: bool | None = Field(
        None,
        description="drop groups whose samples all have the same metric, and replace them by the next prompts;"
        " empty: if the algorithm does (dapo)",
    )
    metric: str = Field(
        "reward", min_length=1, description="what is compared: reward, or the name of one of several scorers"
    )
    tolerance: float = Field(
        1e-6, ge=0, allow_inf_nan=False, description="values that differ by no more than this are the same"
    )
    max_refills: float = Field(
        9.0,
        ge=0,
        allow_inf_nan=False,
        description="most groups that a step may replace, as a multiple of rollout.prompts_per_step",
    )
    on_exhausted: Literal["keep", "drop"] = Field(
        "keep",
        description="groups without signal that cannot be replaced any more: keep them, or train on fewer groups",
    )

    def most_refills(self, prompts_per_step: int) -> int:
        """Groups that a step may replace, if the dataset has enough others."""
        return int(self.max_refills * prompts_per_step)


# The critic of algorithms that have one. A table inside `[trainer]`.


class Critic(Section):
    """Optimizer, betas, weight decay and the limit of the gradient's norm are those of `[trainer]`."""

    lr: float = Field(1e-5, gt=0, description="learning rate of the critic, constant")
    warmup_steps: int = Field(
        0, ge=0, description="training steps at the start in which only the critic learns and the policy is frozen"
    )
    value_clip: float = Field(
        0.5, ge=0, description="values are trained at most this far from those before the step; 0: no limit"
    )
    model: str = Field(
        "", description="model that the critic starts from, with the policy's tokens; empty: model.path"
    )


# How rewards become a loss: the algorithm, and what changes in it. A part of `[trainer]`.


class Losses(Section):
    """Keys without a default have the algorithm's own; `rhymed check` prints them."""

    algorithm: str = Field("grpo", description=f"how rewards become a loss: {', '.join(ALGORITHMS)}")
    advantage: Advantage | None = Field(
        None,
        description="reward minus the group's mean, or minus the mean of the group's others, or the sum of the"
        " rewards of this and later tokens; decoupled: each scorer's rewards normalised in their group, then their"
        " weighted sum in the step; gae: with a critic; none: not trained on",
    )
    advantage_scale: Scale | None = Field(
        None,
        description="what advantages are divided by. group: the group's standard deviation; batch: the step's;"
        " mean: the group's mean",
    )
    whiten: bool | None = Field(None, description="shift and scale advantages to mean 0 and variance 1 over tokens")
    gamma: float | None = Field(None, gt=0, le=1, description="discount per token of later rewards")
    gae_lambda: float | None = Field(
        None, ge=0, le=1, description="gae: share of each later step in a token's advantage, per token"
    )
    loss: Loss | None = Field(None, description="of a token; see docs/algorithms.md")
    ratio: Ratio | None = Field(
        None,
        description="importance ratio of each token, or of the sequence: geometric mean of its tokens' ratios, or"
        " their product",
    )
    clip_eps_low: float | None = Field(
        None, gt=0, lt=1, description="ratios are clipped below 1 - this; gmpo: their logarithms below -this"
    )
    clip_eps_high: float | None = Field(None, gt=0, description="and above 1 + this; gmpo: above this")
    dual_clip: float | None = Field(
        None, ge=0, description="loss of tokens with A < 0 is at most -A times this, which is above 1; 0: off"
    )
    cispo_min: float | None = Field(None, ge=0, description="lower limit of the ratio that weights a token")
    cispo_max: float | None = Field(None, gt=0, description="upper limit of the ratio that weights a token")
    sapo_tau_pos: float | None = Field(None, gt=0, description="slope of the gate of tokens with A > 0")
    sapo_tau_neg: float | None = Field(None, gt=0, description="slope of the gate of tokens with A <= 0")
    dppo_mask_low: float | None = Field(
        None, gt=0, description="a token with A <= 0 whose probability fell by more than this is left out"
    )
    dppo_mask_high: float | None = Field(
        None, gt=0, description="a token with A > 0 whose probability rose by more than this is left out"
    )
    dppo_kl_tau: float | None = Field(None, ge=0, description="weight of the squared logarithm of the ratio")
    aggregation: Aggregation | None = Field(
        None,
        description="mean over the batch's tokens, or over its samples of the mean or sum over their tokens;"
        " norm: of the sum divided by rollout.max_response_length",
    )
    kl_coef: float | None = Field(
        None, ge=0, description="weight of the KL term to the initial model; 0: no reference model is loaded"
    )
    kl_estimator: Estimator | None = Field(None, description="of a token's KL")
    kl_in: Place | None = Field(None, description="where the KL term is added")
    entropy_coef: float | None = Field(None, description="weight of the entropy bonus (mean over the trained tokens)")
    correction: Correction | None = Field(
        None, description="of the difference between the engine's and the trainer's probabilities"
    )
    tis_cap: float | None = Field(None, gt=0, description="token-tis: upper limit of a token's weight")
    sequence_mask_cap: float | None = Field(
        None, gt=0, description="sequence-mask: samples are weighted by their ratio, and left out if it is higher"
    )
    icepop_min: float | None = Field(None, ge=0, description="icepop: tokens of a lower ratio are left out")
    icepop_max: float | None = Field(None, gt=0, description="icepop: tokens of a higher ratio are left out")
    geometric_min: float | None = Field(
        None, ge=0, description="geometric: samples whose tokens' ratios have a lower geometric mean are left out"
    )
    geometric_max: float | None = Field(None, gt=0, description="geometric: and those with a higher one")
    off_policy_mask: float | None = Field(
        None, ge=0, description="samples with A < 0 and a mean KL to the engine above this are left out; 0: off"
    )
    overlong_filter: bool | None = Field(None, description="leave samples that were cut at the limit out of the loss")
    overlong_cache: float | None = Field(
        None,
        ge=0,
        le=1,
        description="last part of rollout.max_response_length in which a longer response costs reward, as a share;"
        " 0: off",
    )
    overlong_penalty: float | None = Field(None, gt=0, description="reward that the longest response loses")

    @property
    def recipe(self) -> Recipe:
        """The algorithm with every part decided."""
        return expand(self.algorithm, {name: getattr(self, name) for name in SETTINGS})

    @model_validator(mode="after")
    def _expands(self) -> Self:
        _ = self.recipe
        if self.dual_clip is not None and 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip = {self.dual_clip:g} must be above 1, or 0 for none")
        return self


Beta = Annotated[float, Field(ge=0, lt=1)]


class Trainer(Losses):
    epochs: int = Field(5, gt=0, le=MOST_STEPS, description="passes over the data")
    steps: int | None = Field(
        None, ge=0, le=MOST_STEPS, description="stop after this many steps, even inside an epoch; empty: no limit"
    )
    engine: Literal["torch", "trace"] = Field(
        "torch", description="trace: no model; weights are a few numbers that depend on every token trained"
    )
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = Field(
        "adamw",
        description="8bit, paged: from the package bitsandbytes; less memory for the optimizer's state",
    )
    lr: float = Field(1e-6, gt=0, description="learning rate, its highest value")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="learning rate after the warm-up; linear, cosine: falls until the run's last step"
    )
    warmup_steps: int = Field(0, ge=0, description="training steps of linear warm-up to lr")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="linear, cosine: they end at this times lr")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="of AdamW")
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
    keep_best: bool = Field(
        False,
        description="also write a checkpoint at each evaluation, and keep the one with the highest held-out reward",
    )
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
            "trainer.entropy_coef weights the mean over the whole step": recipe.entropy_bonus,
            "trainer.whiten takes mean and deviation of the whole step": recipe.whiten,
            "trainer.advantage = 'decoupled' takes the deviation of the whole step": recipe.advantage == "decoupled",
            "trainer.advantage_scale = 'batch' takes the deviation of the whole step": recipe.advantage_scale
            == "batch",
        }
        return [why for why, applies in reasons.items() if applies]

    @property
    def stored_checkpoints(self) -> int:
        """Most checkpoints at once: one is being written; the best one, and one whose evaluation is not over."""
        return self.keep_checkpoints + 1 + 2 * self.keep_best

    @property
    def filters_groups(self) -> bool:
        """Whether groups without signal are dropped, by the settings or by the algorithm."""
        enabled = self.dynamic_sampling.enabled
        return self.algorithm == "dapo" if enabled is None else enabled


# LoRA: which layers get an adapter, and of which rank. A table inside `[trainer]`.

ALL_LINEAR = "all-linear"
"""PEFT's name for every linear layer but the head."""


class Lora(Section):
    """Train low-rank adapters of linear layers instead of the weights. The section switches it on; without it, all
    weights are trained."""

    rank: int = Field(16, gt=0, le=1 << 16, description="r: columns of B and rows of A")
    alpha: float = Field(32.0, gt=0, description="the adapter B A is multiplied by alpha / rank")
    targets: list[str] = Field(
        [], description="names of linear layers, or their last parts, e.g. q_proj; empty: all but the output head"
    )
    adapter: str = Field("", description="folder of an adapter in PEFT's format to begin with; empty: a new one")

    @field_validator("targets", mode="before")
    @classmethod
    def _all(cls, value: Any) -> Any:
        return [] if value in (ALL_LINEAR, [ALL_LINEAR]) else value

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        return self.alpha / self.rank
