"""How responses are generated: sampling, drafts, and the engine without a model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rhymed.core.config.base import MOST_PROCESSES, MOST_TOKENS, Section

LONGEST_STOP = 256  # characters
StopString = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]


class Rollout(Section):
    workers: int = Field(1, ge=0, le=MOST_PROCESSES, description="started by `rhymed run`; more can join at any time")
    engine: Literal["vllm", "trace", "dataset"] = Field(
        "vllm",
        description="trace: no model, synthetic responses; dataset: the rows' own answers, for sft",
    )
    prompts_per_step: int = Field(8, gt=0, le=1 << 20, description="prompts per training step")
    group_size: int = Field(
        8, gt=0, le=1 << 16, description="samples per prompt; 1 only where the algorithm needs no group"
    )
    max_prompt_length: int = Field(512, gt=0, le=MOST_TOKENS, description="tokens")
    max_response_length: int = Field(512, gt=0, le=MOST_TOKENS, description="tokens")
    max_concurrency: int = Field(64, gt=0, le=1 << 16, description="samples that one worker decodes at the same time")
    temperature: float = Field(1.0, gt=0, le=2, description="of training samples")
    top_p: float = Field(1.0, gt=0, le=1, description="1: off")
    top_k: int = Field(0, ge=0, description="0: off")
    min_p: float = Field(0.0, ge=0, lt=1, description="0: off")
    stop: list[StopString] = Field(
        [],
        max_length=64,
        description="strings that end a response or a turn, e.g. </search>; the token that completes one is its last",
    )
    stop_token_ids: list[TokenId] = Field(
        [],
        max_length=64,
        description="token ids that end a response or a turn, in addition to those of model and chat template",
    )
    kv_cache_gib: float = Field(1.0, gt=0, description="CPU engine: memory for the KV cache")
    tensor_parallel: int = Field(
        1, gt=0, le=MOST_PROCESSES, description="GPUs over which an engine divides every layer"
    )
    pipeline_parallel: int = Field(
        1, gt=0, le=MOST_PROCESSES, description="groups of GPUs, each with a part of the layers"
    )
    expert_parallel: bool = Field(False, description="mixture of experts: whole experts per GPU, not a part of each")
    gpu_memory: float = Field(
        0.9, gt=0, le=1, description="GPU engine: share of each GPU's memory for weights, KV cache and activations"
    )
    batch_tokens: int = Field(
        0,
        ge=0,
        le=MOST_TOKENS,
        description="tokens in one forward pass of the engine, at most; 0: the engine's default",
    )
    quantization: str = Field("", description="of the engine's weights, as vLLM names it, e.g. fp8; empty: none")
    engine_args: dict[str, Any] = Field(
        {}, description="further arguments of vLLM's EngineArgs by their names there, checked before the start"
    )
    exact: Literal["tokens", "distribution"] = Field(
        "distribution",
        description="GPU engine. tokens: batch-invariant kernels, so that a repeated sample has the same tokens;"
        " distribution: faster kernels, tokens may differ at near ties",
    )
    sampler: Literal["keyed", "vllm"] = Field(
        "keyed",
        description="keyed: tokens do not depend on drafts, batching, migration or restarts; vllm: vLLM's own",
    )
    runner: Literal["auto", "v1", "v2"] = Field(
        "auto",
        description="vLLM's model runner; a run keeps the one that it began with. auto: what VLLM_USE_V2_MODEL_RUNNER"
        " says, else V1",
    )
    save_every_s: float = Field(
        2.0, ge=0, description="seconds between saves of running samples; 0: samples are saved only when complete"
    )
    stall_s: float = Field(
        300.0, gt=0, description="seconds without a new token after which an engine with work is restarted"
    )

    @model_validator(mode="after")
    def _stops(self) -> Self:
        if self.engine != "vllm" and (self.stop or self.stop_token_ids):
            raise ValueError(f"stop and stop_token_ids have no effect: engine = {self.engine!r} generates no text")
        return self

    @property
    def cuts(self) -> str:
        """The settings that keep only some tokens to be drawn, as `rollout.top_p = 0.8`; empty: all are kept."""
        kept = {
            "top_p": (self.top_p, self.top_p < 1),
            "top_k": (self.top_k, self.top_k),
            "min_p": (self.min_p, self.min_p),
        }
        return ", ".join(f"rollout.{name} = {value:g}" for name, (value, cuts) in kept.items() if cuts)

    @property
    def untold_cuts(self) -> str:
        """`cuts`, where the engine does not send which tokens it kept."""
        return self.cuts if self.silent else ""

    @property
    def silent(self) -> str:
        """The setting with which the engine does not say which tokens it kept; empty: it does."""
        return "rollout.sampler = 'vllm'" if self.sampler == "vllm" else ""

    @property
    def engine_gpus(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel * self.pipeline_parallel


HEADS = ("eagle", "eagle3", "mtp")
"""vLLM's names of heads that may draft in addition to history; they draft token by token."""


class Drafts(Section):
    """Speculative decoding from the token history of the same prompt. Changes the speed, never the samples."""

    method: Literal["history", "history+engine", "none"] = Field(
        "history",
        description="history+engine: vLLM's own head drafts where history has nothing better, see"
        " rollout.engine_args.speculative_config; none: plain decoding",
    )
    budget: Literal["rate", "aimd", "fixed"] = Field(
        "rate",
        description="draft tokens per engine step. rate: as many as pay off for the batch; aimd: the paper's rule;"
        " fixed: max_length",
    )
    matching: Literal["history", "paper"] = Field(
        "history", description="paper: match the last 7 tokens, backing off to 3, in the last epoch's responses"
    )
    max_length: int = Field(
        32,
        gt=0,
        le=128,
        description="tokens per draft; on a GPU rounded down to 127, 63, 31, 15 or 7, for CUDA graphs",
    )
    responses: int = Field(
        32, ge=0, le=1 << 16, description="earlier responses per prompt; 0: only running samples of the group"
    )
    memory_mib: int = Field(512, gt=0, description="memory of one worker for its indexes")

    @property
    def by_engine(self) -> bool:
        """vLLM's own head drafts, too."""
        return self.method == "history+engine"


class Trace(Section):
    """The engine without a model: synthetic responses with a cost model, in real time."""

    mean_length: float = Field(
        200.0, gt=0, le=MOST_TOKENS, description="median response length over prompts, in tokens"
    )
    prompt_sigma: float = Field(0.6, ge=0, le=10, description="log-normal spread between prompts")
    sample_sigma: float = Field(0.3, ge=0, le=10, description="log-normal spread within a prompt")
    step_s: float = Field(0.030, ge=0, description="seconds per forward pass")
    token_s: float = Field(0.0007, ge=0, description="seconds per token in a forward pass")
    verify_s: float = Field(
        0.00007, ge=0, description="seconds to verify a carried token; tokens of one sample share memory reads"
    )
    keep: float = Field(
        1.0, ge=0, le=1, description="probability that a token written ahead is the same under the next weights"
    )
    vocabulary: int = Field(49152, gt=1, le=1 << 31, description="number of token ids")
    tools: list[str] = Field(
        [],
        description="with an environment: turns end with calls of these tools, whose argument `key` is"
        " different in every call",
    )
    turns: float = Field(3.0, ge=1, description="with tools: mean number of turns of a sample")
    train_s: float = Field(0.05, ge=0, description="trainer.engine = trace: seconds per training step")
