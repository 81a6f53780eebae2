"""The configuration of a run: one TOML file, checked at the door. Unknown keys are refused with a suggestion.

What the sections may contain is said here and nowhere else; how files, `-o key=value` and the environment come
together is in `rhymed.load`.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Run(Section):
    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="folder name under `folder`")
    folder: str = Field("runs", description="where run folders are made")
    seed: int = Field(0, ge=0, description="of data order, generated data and sampling")


class Model(Section):
    path: str = Field("SmolLM2-135M-Instruct", description="folder, or a name that `rhymed model` knows")
    dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="of the engine's weights")


class Data(Section):
    source: Literal["reasoning_gym", "jsonl", "parquet"] = "reasoning_gym"
    task: str = Field("chain_sum", description="reasoning_gym: dataset name")
    args: dict[str, Any] = Field({}, description="reasoning_gym: arguments of the dataset")
    size: int = Field(64, gt=0, description="reasoning_gym: how many prompts to generate")
    path: str = Field("", description="jsonl, parquet: the file")
    system: str = Field("", description="system message put before every prompt; empty: none")
    template: str = Field("{prompt}", description="user message; {column} names a column of the row")


class Rollout(Section):
    workers: int = Field(1, ge=0, description="started by `rhymed run`; others may join at any time")
    engine: Literal["vllm", "trace"] = "vllm"
    prompts_per_step: int = Field(8, gt=0)
    group_size: int = Field(8, gt=1, description="samples a prompt")
    max_prompt_length: int = Field(512, gt=0, description="tokens")
    max_response_length: int = Field(512, gt=0, description="tokens")
    max_concurrency: int = Field(64, gt=0, description="samples that one worker decodes at once")
    temperature: float = Field(1.0, gt=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0: off")
    min_p: float = Field(0.0, ge=0, lt=1)
    kv_cache_gib: float = Field(1.0, gt=0, description="CPU engine: memory for keys and values")


class Trace(Section):
    """The engine without a model: recorded or synthetic responses with a cost curve, in real time."""

    path: str = Field("", description="JSONL of {prompt, step, tokens}; empty: synthetic")
    mean_length: float = Field(200.0, gt=0, description="synthetic: median response tokens over prompts")
    prompt_sigma: float = Field(0.6, ge=0, description="synthetic: log-normal spread between prompts")
    sample_sigma: float = Field(0.3, ge=0, description="synthetic: log-normal spread within a prompt")
    step_s: float = Field(0.030, ge=0, description="seconds of a forward pass")
    token_s: float = Field(0.0007, ge=0, description="seconds a token in a forward pass")
    vocabulary: int = Field(49152, gt=1)


class Reward(Section):
    workers: int = Field(1, ge=0)
    processes: int = Field(2, gt=0, description="scoring subprocesses a worker")
    scorer: str = Field("reasoning_gym", description="reasoning_gym, math, exact, regex, or file.py:function")
    answer: Literal["full", "tag", "last_number", "boxed"] = Field("full", description="what is taken for the answer")
    args: dict[str, Any] = Field({}, description="arguments of the scorer")
    timeout_s: float = Field(10.0, gt=0, description="then the scoring subprocess is killed")
    memory_gib: float = Field(4.0, ge=0, description="writable memory of a scoring subprocess; 0: no limit")
    on_error: Literal["drop", "zero", "stop"] = "drop"


class Trainer(Section):
    epochs: int = Field(5, gt=0)
    steps: int | None = Field(None, gt=0, description="end after so many steps, even inside an epoch")
    algorithm: Literal["grpo"] = "grpo"
    lr: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    clip_eps_low: float = Field(0.2, gt=0, lt=1)
    clip_eps_high: float = Field(0.28, gt=0)
    kl_coef: float = Field(0.0, ge=0, description="0: no reference model is kept")
    norm: Literal["token", "sequence"] = Field("token", description="mean over the batch's tokens, or over samples")
    std_normalise: bool = Field(True, description="divide advantages by the group's standard deviation")
    tis_cap: float = Field(2.0, gt=0, description="cap of the engine/trainer importance ratio")
    minibatches: int = Field(1, gt=0, description="optimizer steps a training step")
    micro_tokens: int = Field(4096, gt=0, description="padded tokens in one forward and backward pass")
    checkpoint_every: int = Field(10, gt=0, description="steps")
    keep_checkpoints: int = Field(2, gt=0)
    threads: int = Field(0, ge=0, description="torch threads; 0: torch's default")
    mismatch_warn: float = Field(0.05, gt=0, description="warn when mismatch_kl is above it (nats a token)")


class Schedule(Section):
    policy: Literal["fair"] = "fair"
    max_staleness: int = Field(0, ge=0, description="steps that a token's weights may lag behind the step it trains")
    max_retries: int = Field(2, ge=0, description="of one sample after workers gave it back, then it is dropped")
    heartbeat_s: float = Field(1.0, gt=0)
    lost_after_s: float = Field(20.0, gt=0, description="silence after which a worker counts as lost")


class Store(Section):
    map_gib: float = Field(8.0, gt=0, description="largest size of the database; disk is taken as needed")
    durability: Literal["sync", "async"] = Field("sync", description="sync: acknowledged means on disk")
    compression: int = Field(1, ge=0, le=19, description="zstd level of token arrays")


class Net(Section):
    """Addresses. Empty ones are chosen by `rhymed run`: ipc sockets in a folder of their own."""

    broker: str = ""
    store: str = ""
    weights: str = ""
    insecure: bool = Field(False, description="allow addresses that are open to the network without keys")


class Config(Section):
    run: Run = Run()
    model: Model = Model()
    data: Data = Data()
    rollout: Rollout = Rollout()
    trace: Trace = Trace()
    reward: Reward = Reward()
    trainer: Trainer = Trainer()
    schedule: Schedule = Schedule()
    store: Store = Store()
    net: Net = Net()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        samples = self.rollout.prompts_per_step * self.rollout.group_size
        if samples % self.trainer.minibatches:
            raise ValueError(
                f"trainer.minibatches = {self.trainer.minibatches} does not divide the {samples} samples of a step"
                " (rollout.prompts_per_step x rollout.group_size)"
            )
        if self.data.source == "reasoning_gym" and self.data.size < self.rollout.prompts_per_step:
            raise ValueError(
                f"data.size = {self.data.size} is less than"
                f" rollout.prompts_per_step = {self.rollout.prompts_per_step}"
            )
        if self.data.source != "reasoning_gym" and not self.data.path:
            raise ValueError(f"data.path is needed for data.source = {self.data.source!r}")
        if self.schedule.lost_after_s <= 2 * self.schedule.heartbeat_s:
            raise ValueError("schedule.lost_after_s must be more than twice schedule.heartbeat_s")
        return self
