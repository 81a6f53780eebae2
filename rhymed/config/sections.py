"""The configuration of a run: one TOML file, checked at the door. Unknown keys are refused with a suggestion.

What the sections may contain is said here and nowhere else; how files, `-o key=value` and the environment come
together is in `rhymed.config.load`.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

Answer: TypeAlias = Literal["full", "tag", "last_number", "boxed"]

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
"""File names that tell the kind of a dataset."""

INHERITED = ("system", "template")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _typed(cls, given: Any, info: ValidationInfo) -> Any:
        """Numbers and truth values are not read out of text, nor numbers out of truth values."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        if wanted in (bool, bool | None) and isinstance(given, str):
            raise PydanticKnownError("bool_type")
        if wanted in (int, int | None) and isinstance(given, str | bool):
            raise PydanticKnownError("int_type")
        if wanted in (float, float | None) and isinstance(given, str | bool):
            raise PydanticKnownError("float_type")
        return given


class Run(Section):
    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="folder name under `folder`")
    folder: str = Field("runs", description="where run folders are made")
    seed: int = Field(0, ge=0, description="of data order, generated data and sampling")
    log_level: Literal["debug", "info", "warning"] = Field("info", description="of the files in `logs/`")
    report: bool = Field(True, description="write `report.html` when the run ends")


class Model(Section):
    path: str = Field(
        "SmolLM2-135M-Instruct", description="folder, GGUF file, hub id, or a name that `rhymed model` knows"
    )
    revision: str = Field("", description="hub id: branch, tag or commit; empty: main")
    chat_template: str = Field("", description="file with a Jinja chat template; empty: the tokenizer's own")
    dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="of the engine's weights")


class Data(Section):
    """Where rows come from. `path` tells the `source`: `*.jsonl`, `*.parquet`, else a hub id; none: generated."""

    source: Literal["reasoning_gym", "jsonl", "parquet", "hub"] = Field("reasoning_gym", description="kind of data")
    task: str = Field("chain_sum", description="reasoning_gym: dataset name")
    args: dict[str, Any] = Field({}, description="reasoning_gym: arguments of the dataset")
    size: int = Field(64, gt=0, description="reasoning_gym: how many prompts to generate")
    path: str = Field("", description="jsonl, parquet: the file; hub: a dataset id or a local copy's folder")
    subset: str = Field("", description="hub: configuration of the dataset, e.g. main")
    split: str = Field("train", description="hub: split of the dataset")
    revision: str = Field("", description="hub: branch, tag or commit; empty: main")
    limit: int = Field(0, ge=0, description="use only the first so many rows; 0: all")
    prompt_column: str = Field("", description="empty: prompt, else question, problem, instruction, input or query")
    system: str = Field("", description="system message put before every prompt; empty: none")
    template: str = Field("{prompt}", description="user message; {column} names a column of the row")
    overlong: Literal["error", "drop"] = Field("error", description="what becomes of prompts over max_prompt_length")

    @model_validator(mode="before")
    @classmethod
    def _infer(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "source" in given or not given.get("path"):
            return given
        suffix = PurePath(str(given["path"])).suffix.lower()
        return {**given, "source": SUFFIXES.get(suffix, "hub")}

    @model_validator(mode="after")
    def _has_path(self) -> Self:
        if self.source != "reasoning_gym" and not self.path:
            raise ValueError(f"path is needed for source = {self.source!r}")
        return self


class HeldOut(Data):
    """One dataset to evaluate on. Its prompts are asked with `data.system` and `data.template`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="in metrics: val/<name>/acc/mean@k")


class Eval(Section):
    """Evaluation on held-out prompts: during training every `every` steps, or by `rhymed eval`."""

    datasets: list[HeldOut] = Field([], description="held-out prompts")
    every: int = Field(0, ge=0, description="training steps between evaluations; 0: none during training")
    at_start: bool = Field(True, description="also before the first step")
    samples: int = Field(1, gt=0, description="k: responses a prompt")
    temperature: float = Field(1.0, ge=0, le=2, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="1: off")
    max_response_length: int | None = Field(None, gt=0, description="tokens; empty: rollout.max_response_length")
    threshold: float = Field(1.0, description="reward from which a response counts as right, for pass@k")


class Rollout(Section):
    workers: int = Field(1, ge=0, description="started by `rhymed run`; others may join at any time")
    engine: Literal["vllm", "trace"] = Field("vllm", description="trace: no model, recorded or synthetic responses")
    prompts_per_step: int = Field(8, gt=0, description="different prompts in one training step")
    group_size: int = Field(8, gt=1, description="samples a prompt")
    max_prompt_length: int = Field(512, gt=0, description="tokens")
    max_response_length: int = Field(512, gt=0, description="tokens")
    max_concurrency: int = Field(64, gt=0, description="samples that one worker decodes at once")
    temperature: float = Field(1.0, gt=0, le=2, description="of training samples")
    top_p: float = Field(1.0, gt=0, le=1, description="1: off")
    top_k: int = Field(0, ge=0, description="0: off")
    min_p: float = Field(0.0, ge=0, lt=1, description="0: off")
    kv_cache_gib: float = Field(1.0, gt=0, description="CPU engine: memory for keys and values")
    sampler: Literal["keyed", "vllm"] = Field(
        "keyed", description="keyed: the same tokens whatever was drafted, batched, moved or restarted"
    )
    save_every_s: float = Field(
        2.0, ge=0, description="a running sample's new tokens are stored at least so often; 0: only when it is done"
    )
    stall_s: float = Field(
        300.0, gt=0, description="an engine that has work and makes no token for so long is started again"
    )


class Drafts(Section):
    """Speculative decoding from the token history of the same prompt. Changes the speed, never what is sampled."""

    method: Literal["history", "none"] = Field("history", description="none: plain decoding")
    budget: Literal["rate", "aimd", "fixed"] = Field(
        "rate", description="tokens verified a step: what pays for the batch; the paper's rule; max_length"
    )
    matching: Literal["history", "paper"] = Field(
        "history", description="paper: the last 7 tokens, backing off to 3, in the last epoch's responses"
    )
    max_length: int = Field(32, gt=0, le=128, description="tokens of one draft")
    responses: int = Field(16, ge=0, description="earlier responses a prompt; 0: running siblings only")
    memory_mib: int = Field(512, gt=0, description="of a worker, for indexes")


class Trace(Section):
    """The engine without a model: recorded or synthetic responses with a cost curve, in real time."""

    path: str = Field("", description="JSONL of {prompt, step, tokens}; empty: synthetic")
    mean_length: float = Field(200.0, gt=0, description="synthetic: median response tokens over prompts")
    prompt_sigma: float = Field(0.6, ge=0, description="synthetic: log-normal spread between prompts")
    sample_sigma: float = Field(0.3, ge=0, description="synthetic: log-normal spread within a prompt")
    step_s: float = Field(0.030, ge=0, description="seconds of a forward pass")
    token_s: float = Field(0.0007, ge=0, description="seconds a token in a forward pass")
    verify_s: float = Field(
        0.00007, ge=0, description="seconds to verify a carried token; those of one sample share what they read"
    )
    keep: float = Field(
        1.0, ge=0, le=1, description="probability that a token written ahead is the same under the next weights"
    )
    vocabulary: int = Field(49152, gt=1)
    train_s: float = Field(0.05, ge=0, description="seconds of a training step of trainer.engine = trace")


class Scorer(Section):
    """One of several scorers."""

    scorer: str = Field(description="as reward.scorer")
    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$", description="in metrics; empty: the scorer's own name")
    weight: float = Field(1.0, description="of this scorer in the sum; may be negative")
    answer: Answer = Field("full", description="what is taken for the answer")
    args: dict[str, Any] = Field({}, description="arguments of the scorer")

    @property
    def label(self) -> str:
        """Its name in metrics, e.g. `math`, or `reward` for `my/file.py:reward`."""
        return self.name or self.scorer.rpartition(":")[2]


class Reward(Section):
    workers: int = Field(1, ge=0, description="started by `rhymed run`; others may join at any time")
    processes: int = Field(2, gt=0, description="scoring subprocesses a worker")
    scorer: str = Field(
        "reasoning_gym",
        description="reasoning_gym, math, code, exact, regex, format, length_penalty, or file.py:function",
    )
    answer: Answer = Field("full", description="what is taken for the answer")
    args: dict[str, Any] = Field({}, description="arguments of the scorer")
    scorers: list[Scorer] = Field([], description="several instead of one: the reward is their weighted sum")
    timeout_s: float = Field(10.0, gt=0, description="for one scorer; then the scoring subprocess is killed")
    memory_gib: float = Field(4.0, ge=0, description="writable memory of a scoring subprocess; 0: no limit")
    file_mib: int = Field(64, ge=0, description="largest file that a scoring subprocess may write; 0: no limit")
    open_files: int = Field(256, ge=32, description="that a scoring subprocess may have at a time")
    processes_limit: int = Field(
        128, ge=2, description="processes and threads that a scoring subprocess and all it starts may be at a time"
    )
    on_error: Literal["drop", "zero", "stop"] = Field("drop", description="what a sample that cannot be scored does")

    @property
    def all(self) -> list[Scorer]:
        """At least one."""
        return self.scorers or [Scorer(scorer=self.scorer, answer=self.answer, args=self.args)]

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        fields = type(self).model_fields  # written out again by a process for another, all of them are set
        alone = [name for name in ("scorer", "answer", "args") if getattr(self, name) != fields[name].default]
        if self.scorers and alone:
            raise ValueError(
                f"{' and '.join(alone)} beside scorers: move what is meant into one of [[reward.scorers]]"
            )
        labels = [one.label for one in self.all]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"two scorers are called {twice[0]!r}: give each a name of its own")
        return self


class Trainer(Section):
    epochs: int = Field(5, gt=0, description="times that every prompt is asked")
    steps: int | None = Field(None, ge=0, description="end after so many steps, even inside an epoch")
    engine: Literal["torch", "trace"] = Field(
        "torch", description="trace: no model; weights are a few numbers that depend on every token trained"
    )
    algorithm: Literal["grpo"] = "grpo"
    lr: float = Field(1e-6, gt=0, description="learning rate of AdamW")
    warmup_steps: int = Field(0, ge=0, description="training steps until lr is reached, linearly")
    betas: tuple[float, float] = Field((0.9, 0.999), description="of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to it")
    clip_eps_low: float = Field(0.2, gt=0, lt=1, description="importance ratios are clipped below 1 - this")
    clip_eps_high: float = Field(0.28, gt=0, description="and above 1 + this")
    kl_coef: float = Field(
        0.0, ge=0, description="weight of the KL term to the model as it was; 0: no reference model is kept"
    )
    norm: Literal["token", "sequence"] = Field("token", description="mean over the batch's tokens, or over samples")
    std_normalise: bool = Field(True, description="divide advantages by the group's standard deviation")
    tis_cap: float = Field(2.0, gt=0, description="cap of the engine/trainer importance ratio")
    minibatches: int = Field(1, gt=0, description="optimizer steps a training step")
    micro_tokens: int = Field(4096, gt=0, description="padded tokens in one forward and backward pass")
    checkpoint_every: int = Field(10, gt=0, description="steps")
    keep_checkpoints: int = Field(2, gt=0, description="the newest ones")
    threads: int = Field(0, ge=0, description="torch threads; 0: torch's default")
    stall_s: float = Field(
        3600.0, gt=0, description="a trainer that gets no further with a step for so long is started again"
    )
    mismatch_warn: float = Field(0.05, gt=0, description="warn when mismatch_kl is above it (nats a token)")


class Schedule(Section):
    policy: Literal["flow", "rhyme", "fifo"] = Field(
        "flow", description="flow: longest forecast first, to whoever has room; rhyme: the paper's; fifo: equal parts"
    )

    @field_validator("policy", mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        """Runs that began when there was one policy are resumed with what has taken its place."""
        return "flow" if given == "fair" else given

    run_ahead: int = Field(
        0,
        ge=0,
        le=1,
        description="steps that idle workers may write before their weights are there, to be verified then",
    )
    max_staleness: int = Field(0, ge=0, description="steps that a token's weights may lag behind the step it trains")
    max_retries: int = Field(2, ge=0, description="of one sample after workers gave it back, then it is dropped")
    max_losses: int = Field(
        10, ge=0, description="times that workers may die with one sample, no token further, until it is suspect"
    )
    stuck_after_s: float = Field(
        900.0, gt=0, description="without a new token, or a score, after which a sample is taken from its worker"
    )
    heartbeat_s: float = Field(1.0, gt=0, description="workers tell what they hold so often")
    lost_after_s: float = Field(20.0, gt=0, description="silence after which a worker counts as lost")


class Store(Section):
    map_gib: float = Field(8.0, gt=0, description="largest size of the database; disk is taken as needed")
    durability: Literal["sync", "async"] = Field(
        "sync",
        description="sync: acknowledged means on disk; async: faster, but a power failure may damage the store",
    )
    compression: int = Field(1, ge=0, le=19, description="zstd level of token arrays")


class Metrics(Section):
    """Where metrics go besides `metrics.jsonl`, TensorBoard and `/metrics`. See docs/watching.md."""

    sinks: list[Literal["wandb", "trackio", "mlflow"]] = Field(
        [], description="also send them to these; each needs the extra of its name: pip install 'rhymed[wandb]'"
    )
    project: str = Field("rhymed", min_length=1, description="W&B's and trackio's project, MLflow's experiment")
    entity: str = Field("", description="W&B: user or team; empty: your default one")
    offline: bool = Field(False, description="W&B: only files in the run's folder, to be sent by `wandb sync`")
    space: str = Field("", description="trackio: a Hugging Face Space, e.g. me/trackio; empty: on this machine")
    mlflow: str = Field(
        "",
        description="MLflow's tracking server or database; empty: MLFLOW_TRACKING_URI, else mlflow.db in run.folder",
    )
    traces: str = Field(
        "",
        pattern=r"^(https?://[^\s@]+)?$",
        description="send the lives of samples as OpenTelemetry traces to this OTLP/HTTP address, e.g."
        " http://localhost:4318; needs the extra otel; empty: no traces",
    )
    trace_ratio: float = Field(1.0, ge=0, le=1, description="share of the samples that are traced; steps always are")

    @field_validator("sinks", mode="after")
    @classmethod
    def _once(cls, given: list[str]) -> list[str]:
        return list(dict.fromkeys(given))


class Net(Section):
    """Addresses. Empty ones are chosen by `rhymed run`: ipc sockets in a folder of their own."""

    broker: str = Field("", description="e.g. tcp://10.0.0.1:5550")
    store: str = Field("", description="e.g. tcp://10.0.0.1:5551")
    weights: str = Field("", description="of the trainer, e.g. tcp://10.0.0.1:5552")
    bind: str = Field(
        "", description="what servers listen on where others know them by another name: 0.0.0.0 in a container"
    )
    keys: str = Field(
        "", description="folder of keys that `rhymed keygen` made: locks every tcp:// address; empty: no keys"
    )
    insecure: bool = Field(False, description="allow addresses that are open to the network without keys")
    http: str = Field(
        "127.0.0.1:8420", description="of the dashboard; a taken port: the next free one; empty: no dashboard"
    )

    @field_validator("http")
    @classmethod
    def _is_address(cls, given: str) -> str:
        from rhymed.errors import ConfigError
        from rhymed.wire.addresses import parse

        try:
            if given:
                parse(given)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return given
