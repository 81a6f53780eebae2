"""TRL's GRPOConfig, the settings of `trl grpo`, and those of PEFT's LoraConfig -> ours. Defaults are TRL 1.16.0's.

A step is ours: one generation batch. TRL counts updates of the optimizer; a generation batch may have several.
`DROPPED` has the settings that nothing here needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rhymed.start.migrate.entries import (
    Entry,
    Item,
    Note,
    Put,
    Table,
    adapters,
    chosen,
    flag,
    model_path,
    run_name,
    same,
    sinks,
    unless,
)
from rhymed.start.migrate.trl.loss import DEFAULTS as LOSS_DEFAULTS
from rhymed.start.migrate.trl.loss import ENTRIES as LOSS_ENTRIES
from rhymed.start.migrate.trl.steps import DEFAULTS as STEP_DEFAULTS
from rhymed.start.migrate.trl.steps import ENTRIES as STEP_ENTRIES

DROPPED = """
    vespo_* sapo_* ref_model_* entropy_* disable_dropout
    logging_* log_* debug skip_memory_metrics num_completions_to_print disable_tqdm
    vllm_* request_timeout max_inflight_tasks queue_maxsize weight_sync_steps delta_sync_*
    dataloader_* remove_unused_columns pad_to_multiple_of data_seed label_names length_column_name
    train_sampling_strategy dataset_streaming ignore_data_skip include_*
    save_* load_best_model_at_end metric_for_best_model greater_is_better restore_* hub_*
    lora_* bnb_* use_bnb_* ddp_* ds3_* deepspeed local_rank fsdp fsdp_* parallelism_config accelerator_config
    per_device_eval_batch_size eval_* do_train do_eval do_predict prediction_loss_only batch_eval_metrics
    attn_implementation dtype torch_dtype torch_compile* use_liger_kernel liger_kernel_config tf32 bf16_*
    *_full_eval optim_args gradient_checkpointing_kwargs full_determinism use_transformers_* transformers_*
    cache_implementation average_tokens_across_devices processing_class reward_processing_classes
    torch_empty_cache_steps trackio_* auto_find_batch_size use_cache enable_jit_*
"""
"""Settings of TRL that nothing here needs."""

DEFAULTS: dict[str, Any] = {
    **STEP_DEFAULTS,
    **LOSS_DEFAULTS,
    "learning_rate": 1e-6,
    "optim": "adamw_torch_fused",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": True,
    "seed": 42,
    "max_completion_length": 512,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_tensor_parallel_size": 1,
    "lora_r": 16,
    "lora_alpha": 32,
    "bnb_4bit_quant_type": "nf4",
    "shuffle_dataset": True,
}

# What each setting becomes.

OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw": "paged_adamw",
    "paged_adamw_32bit": "paged_adamw",
    "paged_adamw_8bit": "paged_adamw_8bit",
}
LORA = ("lora_r", "lora_alpha", "lora_target_modules")
PROMPT_TOKENS = 512
"""Since TRL 1.0 prompts have no limit; ours need one."""


def _precision(bf16: bool | None, fp16: bool | None, use_cpu: bool | None) -> Iterator[Item]:
    if fp16:
        yield Note("fp16", "unsupported", "the trainer computes in bfloat16 or float32: model.train_dtype")
    yield Put("model.train_dtype", "float32" if bf16 is False and not fp16 else "bfloat16", "weights stay float32")
    if use_cpu:
        yield Put("trainer.device", "cpu")


def _prompts(limit: int | None) -> Iterator[Item]:
    if limit is None:
        why = "TRL has no limit: raise it if `rhymed check` finds longer prompts"
        yield Put("rollout.max_prompt_length", PROMPT_TOKENS, why)
    else:
        yield Put("rollout.max_prompt_length", limit)
        yield Put("data.overlong", "drop", "TRL cut longer prompts at their beginning")
        yield Note("max_prompt_length", "different", "longer prompts are left out, not cut: data.overlong")


def _devices(use_vllm: bool | None, mode: str, memory: float, tensor_parallel: int, processes: int) -> Iterator[Item]:
    if processes == 0:
        yield Put("trainer.device", "cpu")
        return
    parallel = tensor_parallel if use_vllm else 1
    if use_vllm and mode == "server":
        yield Note(
            "vllm_mode", "different", "rhymed starts its engines itself, on GPUs after the trainer's: rollout.workers"
        )
    else:
        where = "on the trainer's GPUs" if use_vllm else "without use_vllm TRL generates where it trains"
        yield Put("schedule.colocate", True, f"{where}; no effect without a GPU", ("use_vllm",))
        if use_vllm:
            yield Put("rollout.gpu_memory", memory, of=("vllm_gpu_memory_utilization",))
    if processes > 1:
        yield Put("trainer.gpus", processes, "one process of `accelerate launch` each", ("processes",))
        yield Put("rollout.workers", max(1, processes // parallel), "engines", ("processes",))
    if parallel > 1:
        yield Put("rollout.tensor_parallel", parallel, of=("vllm_tensor_parallel_size",))


def _optimizer(name: str) -> Iterator[Item]:
    yield Put("trainer.optimizer", (yield from chosen(OPTIMIZERS, str(name).lower(), "optim", "adamw_torch")))


def _four_bits(
    wanted: bool | None, kind: str, nested: bool | None, lora: bool | None, processes: int
) -> Iterator[Item]:
    reasons = {
        f"{kind}: weights of 4 bits are nf4 here": kind != "nf4",
        "only adapters over weights of 4 bits can be trained: use_peft": not lora,
        "one process trains over weights of 4 bits": processes > 1,
    }
    if not wanted:
        return
    if why := next((reason for reason, given in reasons.items() if given), ""):
        yield Note("load_in_4bit", "unsupported", why)
        return
    yield Put("model.quantization", "nf4", of=("load_in_4bit",))
    if nested:
        yield Note("use_bnb_nested_quant", "different", "the factor of 64 weights stays a float32")


def _name(run: str | None, output: str | None) -> Iterator[Item]:
    if name := run or (PurePosixPath(output).name if output else ""):
        yield Put("run.name", run_name(name))
    if output:
        yield Note("output_dir", "different", "everything is in the run's folder, run.folder/run.name")


def _iterations(most: int | None) -> Iterator[Item]:
    """TRL counts rounds of calls, each of which one more turn follows."""
    if most is not None:
        yield Put("environment.max_turns", most + 1, "rounds of calls, and the last word")


def _init(kwargs: dict[str, Any] | None) -> Iterator[Item]:
    if kwargs and kwargs.get("revision"):
        yield Put("model.revision", str(kwargs["revision"]))
    known = ("revision", "dtype", "torch_dtype", "attn_implementation", "quantization_config")
    others = [name for name in kwargs or {} if name not in known]
    if others:
        yield Note("model_init_kwargs", "unsupported", f"{', '.join(others)}: the model is loaded without it")


UNSUPPORTED = {
    "generation_kwargs": "sampling has temperature, top_p, top_k and min_p",
    "vllm_structured_outputs_regex": "responses are not constrained",
    "rollout_func": "turns are generated by rhymed's own engines: write environment_factory, or a program"
    " (environment.command)",
    "quantization_config": "a trained model is quantised to nf4 only, model.quantization",
    "load_in_8bit": "a trained model has weights of 4 bits, model.quantization = 'nf4', or of 16 and more",
    "use_rslora": "an adapter's factor is alpha / rank: set trainer.lora.alpha for another one",
    "use_dora": "adapters are plain LoRA",
    "lora_modules_to_save": "with LoRA only adapters are trained",
    "callbacks": "a run has no callbacks: metrics.jsonl, /metrics and rhymed.open_run show its state",
    "optimizers": "the optimizer and its schedule are set by trainer.optimizer and trainer.schedule",
    "cast_lm_head_to_fp32": "the output head computes in model.train_dtype",
    "trust_remote_code": "a model's own Python code is not run",
}
"""Settings without a counterpart, and why."""

ENTRIES = (
    Entry(("model", "model_name_or_path"), ("model.path",), lambda one, two: model_path(one or two, "model")),
    Entry(("model_init_kwargs",), ("model.revision",), _init),
    same("model_revision", "model.revision"),
    Entry(("bf16", "fp16", "use_cpu"), ("model.train_dtype",), _precision),
    Entry(("run_name", "output_dir"), ("run.name",), _name),
    same("seed", "run.seed"),
    *STEP_ENTRIES,
    same("max_completion_length", "rollout.max_response_length"),
    Entry(("max_prompt_length",), ("rollout.max_prompt_length",), _prompts),
    Entry(("max_tool_calling_iterations",), ("environment.max_turns",), _iterations),
    same("temperature", "rollout.temperature"),
    same("top_p", "rollout.top_p"),
    Entry(("top_k",), ("rollout.top_k",), lambda value: (Put("rollout.top_k", max(0, value or 0)),)),
    same("min_p", "rollout.min_p"),
    *LOSS_ENTRIES,
    same("learning_rate", "trainer.lr"),
    Entry(("optim",), ("trainer.optimizer",), _optimizer),
    Entry(("adam_beta1", "adam_beta2"), ("trainer.betas",), lambda one, two: (Put("trainer.betas", [one, two]),)),
    same("weight_decay", "trainer.weight_decay"),
    same("max_grad_norm", "trainer.max_grad_norm"),
    same("gradient_checkpointing", "trainer.gradient_checkpointing", "less memory, a third more time"),
    Entry(
        ("use_peft", *LORA),
        ("trainer.lora.rank", "trainer.lora.alpha"),
        lambda use, rank, alpha, targets: adapters(rank, alpha, targets, LORA) if use else (),
    ),
    Entry(
        ("load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "use_peft", "processes"),
        ("model.quantization",),
        _four_bits,
    ),
    Entry(
        ("use_vllm", "vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "processes"),
        ("schedule.colocate",),
        _devices,
    ),
    Entry(("report_to",), ("metrics.sinks",), lambda to: sinks(to, "report_to", ("tensorboard", "none"))),
    same("project", "metrics.project"),
    same("chat_template_kwargs", "model.chat_template_kwargs"),
    same("max_staleness", "schedule.max_staleness"),
    unless("repetition_penalty", 1.0, "unsupported", "sampling has no repetition penalty"),
    *(flag(name, "unsupported", reason) for name, reason in UNSUPPORTED.items()),
    flag("lora_dropout", "different", "adapters are trained without dropout"),
    flag(
        "push_to_hub",
        "different",
        "after the run: rhymed checkpoint export RUN FOLDER, and hf upload USER/NAME FOLDER",
    ),
    flag("resume_from_checkpoint", "different", "rhymed run --resume RUN continues a run"),
    flag("log_completions", "different", "every response is kept; metrics.samples sends some of them to sinks"),
    unless("shuffle_dataset", True, "unsupported", "prompts are shuffled in every epoch, by run.seed"),
    unless("adam_epsilon", 1e-8, "unsupported", "AdamW adds 1e-8"),
    unless("neftune_noise_alpha", None, "unsupported", "embeddings get no noise"),
    unless("label_smoothing_factor", 0.0, "unsupported", "labels are not smoothed"),
    unless("optim_target_modules", None, "unsupported", "the optimizer has all weights, or those of trainer.lora"),
)

TRL = Table("TRL", "1.16", DEFAULTS, ENTRIES, DROPPED, ("processes",))
