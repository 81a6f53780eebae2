"""Turns pydantic's error about one key into a sentence for the author of the configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rhymed.core.config.config import Config
from rhymed.core.text import short

MEANT = {
    "adam_beta1": "trainer.betas",
    "adam_beta2": "trainer.betas",
    "batch_size": "rollout.prompts_per_step",
    "beta": "trainer.kl_coef",
    "chat_template_path": "model.chat_template",
    "clip_grad": "trainer.max_grad_norm",
    "clip_ratio": "trainer.clip_eps_low",
    "clip_ratio_high": "trainer.clip_eps_high",
    "clip_ratio_low": "trainer.clip_eps_low",
    "dataset": "data.path",
    "dataset_name": "data.path",
    "environment_factory": "environment.factory",
    "epsilon": "trainer.clip_eps_low",
    "epsilon_high": "trainer.clip_eps_high",
    "eval_steps": "eval.every",
    "gpu_memory_utilization": "rollout.gpu_memory",
    "kl_loss_coef": "trainer.kl_coef",
    "learning_rate": "trainer.lr",
    "logger": "metrics.sinks",
    "lora_alpha": "trainer.lora.alpha",
    "lora_r": "trainer.lora.rank",
    "lora_rank": "trainer.lora.rank",
    "loss_agg_mode": "trainer.aggregation",
    "loss_type": "trainer.algorithm",
    "lr_scheduler_type": "trainer.schedule",
    "max_completion_length": "rollout.max_response_length",
    "max_new_tokens": "rollout.max_response_length",
    "max_num_seqs": "rollout.max_concurrency",
    "max_steps": "trainer.steps",
    "max_tokens": "rollout.max_response_length",
    "max_tool_calling_iterations": "environment.max_turns",
    "model_name_or_path": "model.path",
    "n": "rollout.group_size",
    "num_generations": "rollout.group_size",
    "num_train_epochs": "trainer.epochs",
    "optim": "trainer.optimizer",
    "output_dir": "run.folder",
    "project_name": "metrics.project",
    "report_to": "metrics.sinks",
    "reward_funcs": "reward.scorer",
    "save_steps": "trainer.checkpoint_every",
    "save_total_limit": "trainer.keep_checkpoints",
    "scale_rewards": "trainer.advantage_scale",
    "tensor_model_parallel_size": "rollout.tensor_parallel",
    "tensor_parallel_size": "rollout.tensor_parallel",
    "total_epochs": "trainer.epochs",
    "total_training_steps": "trainer.steps",
    "train_batch_size": "rollout.prompts_per_step",
    "train_files": "data.path",
    "val_files": "eval.datasets",
}
"""Names of TRL, verl and vLLM -> names of rhymed."""

TYPE_NAMES = {
    "int": "a whole number without quotes",
    "float": "a number without quotes",
    "bool": "true or false without quotes",
    "string": "text in quotes",
    "dict": "a table, { key = value }",
    "list": "a list, [ ... ]",
    "tuple": "a list, [ ... ]",
}
"""TOML's types, by the first word of pydantic's error types."""


GONE = {
    "drafts.head": "a fitted head gained nothing over history; drafts.method = 'history+engine' has vLLM's own heads",
    "drafts.method = 'history+head'": "a fitted head gained nothing over history: take 'history', or for vLLM's"
    " own heads 'history+engine'",
    "drafts.refit": "there is no head to fit again; leave the key out",
    "environment.threads": "raise environment.processes, or write async functions, of which many wait at once",
    **dict.fromkeys(
        (f"metrics.sinks.{place} = 'tensorboard'" for place in range(4)),
        "its curves need no sink; `rhymed view` shows the samples",
    ),
    "metrics.trace_ratio": "`rhymed logs --sample ID` shows the story of a sample",
    "metrics.traces": "`rhymed logs --sample ID` shows the story of a sample",
    "net.transport = 'broadcast'": "engines map the trainer's file in shared memory; leave the key out",
    "reward.judge.field": "set pattern, such as '\"score\": *([0-9.]+)'",
    "reward.judge.read": "leave it out for a score in the last line, or set pattern, such as"
    " '\"score\": *([0-9.]+)' for JSON",
    "reward.judge.rubric_file": "write the text as rubric, between three quotation marks",
    "store.shards": "one store takes 10,000 samples of 512 tokens a second, more than a thousand GPUs generate",
    "store.token_stats_gib": "training's numbers of each token are not kept; metrics have their means",
    "trace.path": "`rhymed sim --trace FILE` schedules the responses of a run",
    **dict.fromkeys(
        (f"trainer.entropy_{name}" for name in ("target", "coef_min", "coef_max", "coef_delta")),
        "the weight of the entropy bonus is fixed: trainer.entropy_coef",
    ),
    "trainer.optimizer = 'muon'": "it trained one process's matrices only: take 'adamw'",
}
"""Settings, and values, that earlier releases had -> what serves in their place."""


def explain(row: Any) -> str:
    """One entry of `ValidationError.errors()`; several lines if a validator found several contradictions."""
    loc, kind, value = tuple(row["loc"]), str(row["type"]), row["input"]
    key, expected = ".".join(map(str, loc)), kind.partition("_")[0]
    if kind == "extra_forbidden":
        return f"{key} is gone: {GONE[key]}" if key in GONE else _unknown(loc)
    if kind == "missing":
        return f"{key} is missing"
    if kind == "literal_error" and (gone := GONE.get(f"{key} = {_quoted(value)}")):
        return f"{key} = {_quoted(value)} is gone: {gone}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key} = {_quoted(value)}: {key} is a section: write [{key}] and its keys on the lines below"
    if kind == "value_error":
        message = str(row["msg"]).removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    if kind == "string_pattern_mismatch" and loc[-1] == "url":
        return f"{key} = {_quoted(value)}: an address without a password is needed, e.g. http://10.0.0.1:8000/v1"
    if kind == "string_pattern_mismatch":
        return (
            f"{key} = {_quoted(value)}: only letters, digits, '.', '_' and '-' are allowed, first a letter or digit"
        )
    if kind.endswith(("_type", "_parsing", "_from_float")) and expected in TYPE_NAMES:
        return f"{key} = {_quoted(value)}: {TYPE_NAMES[expected]} is needed"
    message = re.sub(r"^Input should be", "it must be", str(row["msg"]))
    return f"{key} = {_quoted(value)}: {message[:1].lower()}{message[1:]}"


def field_of(loc: Sequence[str | int]) -> FieldInfo | None:
    model: Any = Config
    field: FieldInfo | None = None
    for part in loc:
        if isinstance(part, int):
            continue  # an entry of the list before it
        field = model.model_fields.get(part) if model is not None else None
        if field is None:
            return None
        model = _model(field.annotation)
    return field


def _model(annotation: Any) -> type[BaseModel] | None:
    """The section that the annotation is, or is a list of."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _unknown(loc: tuple[Any, ...]) -> str:
    parent, name = field_of(loc[:-1]), str(loc[-1])
    model = (_model(parent.annotation) if parent else Config) or Config
    valid = sorted(model.model_fields)
    unknown = f"unknown key {'.'.join(map(str, loc))}" if len(loc) > 1 else f"unknown section {name}"
    if name in MEANT:
        return f"{unknown}; did you mean {MEANT[name]}?"
    if close := difflib.get_close_matches(name, valid, n=1):
        return f"{unknown}; did you mean {close[0]}?"
    sections = {
        section: getattr(field.annotation, "model_fields", {}) for section, field in Config.model_fields.items()
    }
    if homes := [f"[{section}]" for section, fields in sections.items() if name in fields]:
        return f"{unknown}; it belongs to {' or '.join(homes)}"
    return f"{unknown}; valid here: {', '.join(valid)}"


def _quoted(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else short(value, 60)
