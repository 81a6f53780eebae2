"""The configuration of a run: one TOML file, checked at the door. Unknown keys are refused with a suggestion.

What the sections may contain is said here and nowhere else; how files, `-o key=value` and the environment come
together is in `rhymed.load`.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class Model(Section):
    path: str = Field(
        "SmolLM2-135M-Instruct", description="folder, GGUF file, hub id, or a name that `rhymed model` knows"
    )
    revision: str = Field("", description="hub id: branch, tag or commit; empty: main")
    chat_template: str = Field("", description="file with a Jinja chat template; empty: the tokenizer's own")
    dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="of the engine's weights")


class Data(Section):
    """Where rows come from. Without `source`, `path` tells: *.jsonl, *.parquet, else a hub id; no path: generated."""

    source: Literal["reasoning_gym", "jsonl", "parquet", "hub"] = "reasoning_gym"
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

    datasets: list[HeldOut] = []
    every: int = Field(0, ge=0, description="training steps between evaluations; 0: none during training")
    at_start: bool = Field(True, description="also before the first step")
    samples: int = Field(1, gt=0, description="k: responses a prompt")
    temperature: float = Field(1.0, ge=0, le=2, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    max_response_length: int | None = Field(None, gt=0, description="tokens; empty: rollout.max_response_length")
    threshold: float = Field(1.0, description="reward from which a response counts as right, for pass@k")


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


class Scorer(Section):
    """One of several scorers."""

    scorer: str = Field(description="as reward.scorer")
    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$", description="in metrics; empty: the scorer's own name")
    weight: float = 1.0
    answer: Answer = "full"
    args: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """Its name in metrics, e.g. `math`, or `reward` for `my/file.py:reward`."""
        return self.name or self.scorer.rpartition(":")[2]


class Reward(Section):
    workers: int = Field(1, ge=0)
    processes: int = Field(2, gt=0, description="scoring subprocesses a worker")
    scorer: str = Field(
        "reasoning_gym",
        description="reasoning_gym, math, exact, regex, format, length_penalty, or file.py:function",
    )
    answer: Answer = Field("full", description="what is taken for the answer")
    args: dict[str, Any] = Field({}, description="arguments of the scorer")
    scorers: list[Scorer] = Field([], description="several instead of one: the reward is their weighted sum")
    timeout_s: float = Field(10.0, gt=0, description="for one scorer; then the scoring subprocess is killed")
    memory_gib: float = Field(4.0, ge=0, description="writable memory of a scoring subprocess; 0: no limit")
    on_error: Literal["drop", "zero", "stop"] = "drop"

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
    epochs: int = Field(5, gt=0)
    steps: int | None = Field(None, ge=0, description="end after so many steps, even inside an epoch")
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
    eval: Eval = Eval()
    trainer: Trainer = Trainer()
    schedule: Schedule = Schedule()
    store: Store = Store()
    net: Net = Net()

    @property
    def longest_response(self) -> int:
        """Tokens of the longest response that is ever asked for, in training or evaluation."""
        return max(self.rollout.max_response_length, self.eval.max_response_length or 0)

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, given: Any) -> Any:
        """Held-out prompts are asked as those of the training are, unless they say otherwise."""
        if not isinstance(given, dict):
            return given
        data, evaluation = given.get("data"), given.get("eval")
        if not isinstance(data, dict) or not isinstance(evaluation, dict):
            return given
        held_out = evaluation.get("datasets")
        if not isinstance(held_out, list):
            return given
        shared = {key: data[key] for key in INHERITED if key in data}
        for one in held_out:
            for key in INHERITED:
                if isinstance(one, dict) and key in one and one[key] != data.get(key, Data.model_fields[key].default):
                    raise ValueError(f"eval.datasets: {key} must be that of data, or left out: both are asked alike")
        datasets = [{**shared, **one} if isinstance(one, dict) else one for one in held_out]
        return {**given, "eval": {**evaluation, "datasets": datasets}}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if found := list(contradictions(self)):
            raise ValueError("\n".join(found))
        return self


def contradictions(config: Config) -> Iterator[str]:
    """What settings say against each other, a line each, as far as no file has to be read for it."""
    rollout, trainer, data = config.rollout, config.trainer, config.data
    samples = rollout.prompts_per_step * rollout.group_size
    if samples % trainer.minibatches:
        yield (
            f"trainer.minibatches = {trainer.minibatches} does not divide the {samples} samples of a step"
            " (rollout.prompts_per_step x rollout.group_size)"
        )
    if data.source == "reasoning_gym" and data.size < rollout.prompts_per_step:
        yield f"data.size = {data.size} is less than rollout.prompts_per_step = {rollout.prompts_per_step}"
    if 0 < data.limit < rollout.prompts_per_step:
        yield f"data.limit = {data.limit} is less than rollout.prompts_per_step = {rollout.prompts_per_step}"
    if trainer.steps is not None and trainer.warmup_steps > trainer.steps:
        yield (
            f"trainer.warmup_steps = {trainer.warmup_steps} is more than trainer.steps = {trainer.steps}:"
            " the learning rate would never be reached"
        )
    yield from _evaluation(config.eval)
    if config.schedule.lost_after_s <= 2 * config.schedule.heartbeat_s:
        yield "schedule.lost_after_s must be more than twice schedule.heartbeat_s"
    given = [address for address in (config.net.broker, config.net.store, config.net.weights) if address]
    if len(set(given)) < len(given):
        yield "net.broker, net.store and net.weights must be three different addresses"


def _evaluation(held_out: Eval) -> Iterator[str]:
    if held_out.every and not held_out.datasets:
        yield f"eval.every = {held_out.every} needs at least one of [[eval.datasets]]"
    names = [one.name for one in held_out.datasets]
    if len(set(names)) < len(names):
        yield f"eval.datasets: two have the same name ({', '.join(names)})"
    if held_out.samples > 1 and held_out.temperature == 0:
        yield (
            f"eval.samples = {held_out.samples} with eval.temperature = 0: greedy responses are all the same;"
            " set samples = 1 or a temperature"
        )
