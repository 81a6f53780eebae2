"""What a run reads: the model, the training data and the held-out data."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rhymed.core.config.base import MOST_TOKENS, NAME_LENGTH, Section

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
"""Suffix of `data.path` -> `data.source`."""

INHERITED = ("system", "template")
"""Keys that every dataset takes from `data`."""


RESERVED = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "messages",
        "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs",
        "tools", "truncation",
    }
)  # fmt: skip
"""Arguments of a chat template that the user may not set."""


class Model(Section):
    path: str = Field(
        "SmolLM2-135M-Instruct", description="folder, GGUF file, hub id, or a known name, see docs/models.md"
    )
    revision: str = Field("", description="hub id: branch, tag or commit; empty: main")
    chat_template: str = Field("", description="file with a Jinja chat template; empty: the tokenizer's own")
    chat_template_kwargs: dict[str, Any] = Field(
        {},
        description="arguments of the chat template, such as { enable_thinking = false }; those in a row's column of"
        " that name win",
    )
    dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="of the engine's weights")
    train_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="in which the trainer computes; its weights and optimizer state are float32"
    )
    quantization: Literal["", "nf4"] = Field(
        "",
        description="nf4: LoRA over a model of 4 bits (QLoRA), which the trainer keeps so, and whose numbers the"
        " engine has in dtype; from the package bitsandbytes; empty: none",
    )

    @field_validator("chat_template_kwargs")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(RESERVED & value.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be set: rhymed passes it")
        return value


class Dataset(Section):
    """Rows from one place."""

    source: Literal["reasoning_gym", "jsonl", "parquet", "hub"] = Field("reasoning_gym", description="kind of data")
    task: str = Field("chain_sum", description="reasoning_gym: dataset name")
    args: dict[str, Any] = Field({}, description="reasoning_gym: arguments of the dataset")
    size: int = Field(64, gt=0, le=1 << 30, description="reasoning_gym: number of prompts to generate")
    path: str = Field("", description="jsonl, parquet: the file; hub: a dataset id or the folder of a local copy")
    subset: str = Field("", description="hub: configuration of the dataset, e.g. main")
    split: str = Field("train", description="hub: split of the dataset")
    revision: str = Field("", description="hub: branch, tag or commit; empty: main")
    limit: int = Field(0, ge=0, description="use only this many rows, from the first; 0: all")
    prompt_column: str = Field("", description="empty: prompt, else question, problem, instruction, input or query")
    answer_column: str = Field(
        "", description="rollout.engine = dataset: column with the right answer; empty: answer, or completion"
    )
    system: str = Field("", description="system message before every prompt that has none of its own; empty: none")
    template: str = Field("{prompt}", description="user message; {column} is replaced by that column of the row")
    overlong: Literal["error", "drop"] = Field(
        "error",
        description="what happens to prompts longer than rollout.max_prompt_length, with what tools add to them",
    )

    @property
    def parts(self) -> list[Dataset]:
        """The datasets that it consists of, at least one."""
        return [self]

    @model_validator(mode="before")
    @classmethod
    def _infer_source(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "source" in value or not value.get("path"):
            return value
        return {**value, "source": SUFFIXES.get(PurePath(str(value["path"])).suffix.lower(), "hub")}

    @model_validator(mode="after")
    def _has_path(self) -> Self:
        if self.source != "reasoning_gym" and not self.path:
            raise ValueError(f"path is needed for source = {self.source!r}")
        return self


class Share(Dataset):
    """One of several training datasets, instead of the keys of `[data]`. Takes `data.system` and `data.template`."""

    weight: float = Field(1.0, gt=0, description="its share of the prompts, relative to the other datasets")


class Data(Dataset):
    """The training data. `source` follows from `path`: `*.jsonl`, `*.parquet`, else a hub id; no path: generated."""

    datasets: list[Share] = Field([], description="several training datasets, each with a weight")
    sampler: Literal["uniform", "success", "length"] = Field(
        "uniform",
        description="success: prompts whose last group succeeded always or never are asked less often; length: those"
        " with the longest responses share few steps",
    )
    least_chance: float = Field(
        0.25, ge=0.01, le=1, description="success: the chance that such a prompt is asked when its turn comes"
    )
    success_from: float = Field(1.0, description="success: least reward of a success")

    @property
    def parts(self) -> list[Dataset]:
        return [*self.datasets] or [self]

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        single = self.changed(*(key for key in Dataset.model_fields if key not in INHERITED))
        if self.datasets and single:
            raise ValueError(
                f"{' and '.join(single)} cannot be combined with datasets: move it into each [[data.datasets]]"
            )
        if self.datasets and self.sampler == "length":
            raise ValueError("sampler = 'length' orders one dataset: of several, each step has its share of each")
        return self


class HeldOut(Dataset):
    """One dataset to evaluate on. Its prompts use `data.system` and `data.template`."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=NAME_LENGTH,
        description="in metrics: val/<name>/acc/mean@k",
    )


class Eval(Section):
    """Evaluation on held-out prompts: every `every` steps of training, or by `rhymed eval`."""

    datasets: list[HeldOut] = Field([], description="held-out prompts")
    every: int = Field(0, ge=0, description="training steps between evaluations; 0: none during training")
    at_start: bool = Field(True, description="also evaluate before the first step")
    samples: int = Field(1, gt=0, le=1 << 16, description="k: responses per prompt")
    temperature: float = Field(1.0, ge=0, le=2, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="1: off")
    max_response_length: int | None = Field(
        None, gt=0, le=MOST_TOKENS, description="tokens; empty: rollout.max_response_length"
    )
    threshold: float = Field(1.0, description="smallest reward that counts as correct, for pass@k")
