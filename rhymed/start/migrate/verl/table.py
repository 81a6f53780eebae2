"""verl's `main_ppo` -> ours, with the defaults of 0.9.1. Its `train_batch_size` counts prompts, as our steps do."""

from __future__ import annotations

from typing import Any

from rhymed.start.migrate.entries import Entry, Put, Table, adapters, flag, model_path, run_name, same, sinks, unless
from rhymed.start.migrate.verl import parts
from rhymed.start.migrate.verl.loss import DEFAULTS as LOSS_DEFAULTS
from rhymed.start.migrate.verl.loss import ENTRIES as LOSS_ENTRIES
from rhymed.start.migrate.verl.parts import ACTOR, MODEL, OPTIM, ROLLOUT

DEFAULTS: dict[str, Any] = {
    **LOSS_DEFAULTS,
    "data.train_files": "~/data/rlhf/gsm8k/train.parquet",
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.shuffle": True,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.ppo_max_token_len_per_gpu": 16384,
    f"{OPTIM}.lr": 1e-6,
    f"{OPTIM}.weight_decay": 0.01,
    f"{OPTIM}.clip_grad": 1.0,
    f"{OPTIM}.lr_scheduler_type": "constant",
    f"{OPTIM}.lr_warmup_steps": -1,
    f"{OPTIM}.lr_warmup_steps_ratio": 0.0,
    f"{OPTIM}.betas": [0.9, 0.999],
    f"{MODEL}.path": None,
    f"{MODEL}.enable_gradient_checkpointing": True,
    f"{MODEL}.lora_rank": 0,
    f"{MODEL}.lora_alpha": 16,
    f"{MODEL}.target_modules": "all-linear",
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1.0,
    f"{ROLLOUT}.top_k": -1,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{ROLLOUT}.max_num_seqs": 256,
    f"{ROLLOUT}.val_kwargs.n": 1,
    f"{ROLLOUT}.val_kwargs.temperature": 0,
    f"{ROLLOUT}.val_kwargs.do_sample": False,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 30,
    "trainer.test_freq": -1,
    "trainer.val_before_train": True,
    "trainer.save_freq": -1,
    "trainer.v1.trainer_mode": "sync",
}

LORA = (f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha", f"{MODEL}.target_modules")
LOGGERS = ("console", "file", "tensorboard")

ENTRIES = (
    Entry((f"{MODEL}.path",), ("model.path",), lambda path: model_path(path, f"{MODEL}.path")),
    Entry(
        ("data.train_files", "data.prompt_key", "data.train_max_samples", "data.filter_overlong_prompts"),
        ("data.path",),
        parts.train,
        named=1,
    ),
    Entry(("data.val_files", "data.val_max_samples"), ("eval.datasets",), parts.held_out, named=1),
    Entry(
        (
            *("trainer.test_freq", "trainer.val_before_train"),
            *(f"{ROLLOUT}.val_kwargs.{name}" for name in ("n", "temperature", "do_sample")),
        ),
        ("eval.every",),
        parts.evaluation,
    ),
    Entry(
        ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n", f"{ACTOR}.ppo_epochs"),
        ("rollout.prompts_per_step", "rollout.group_size", "trainer.minibatches"),
        parts.batch,
        named=3,
    ),
    same("data.max_prompt_length", "rollout.max_prompt_length"),
    same("data.max_response_length", "rollout.max_response_length"),
    same(f"{ROLLOUT}.temperature", "rollout.temperature"),
    same(f"{ROLLOUT}.top_p", "rollout.top_p"),
    Entry((f"{ROLLOUT}.top_k",), ("rollout.top_k",), lambda value: (Put("rollout.top_k", max(0, value)),)),
    same(f"{ROLLOUT}.max_num_seqs", "rollout.max_concurrency"),
    *LOSS_ENTRIES,
    same(f"{OPTIM}.lr", "trainer.lr"),
    same(f"{OPTIM}.weight_decay", "trainer.weight_decay"),
    same(f"{OPTIM}.betas", "trainer.betas"),
    same(f"{OPTIM}.clip_grad", "trainer.max_grad_norm"),
    Entry(
        (f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio", "trainer.total_training_steps"),
        ("trainer.warmup_steps",),
        parts.warmup,
        named=2,
    ),
    Entry(
        (f"{OPTIM}.lr_scheduler_type", f"{OPTIM}.warmup_style", f"{OPTIM}.min_lr_ratio"),
        ("trainer.schedule",),
        parts.schedule,
    ),
    Entry(
        (
            *(f"{ACTOR}.{name}" for name in ("use_dynamic_bsz", "ppo_max_token_len_per_gpu")),
            f"{ACTOR}.ppo_micro_batch_size_per_gpu",
            "data.max_prompt_length",
            "data.max_response_length",
        ),
        ("trainer.micro_tokens",),
        parts.micro,
        named=3,
    ),
    same(f"{MODEL}.enable_gradient_checkpointing", "trainer.gradient_checkpointing"),
    Entry(
        LORA,
        ("trainer.lora.rank",),
        lambda rank, alpha, targets: adapters(rank, alpha, targets, LORA) if rank else (),
    ),
    Entry(("trainer.total_epochs", "trainer.total_training_steps"), ("trainer.epochs",), parts.length),
    Entry(
        ("trainer.save_freq",),
        ("trainer.checkpoint_every",),
        lambda every: (Put("trainer.checkpoint_every", every),) if every > 0 else (),
    ),
    same("trainer.max_actor_ckpt_to_keep", "trainer.keep_checkpoints"),
    Entry(
        (
            *("trainer.nnodes", "trainer.n_gpus_per_node", f"{ROLLOUT}.tensor_model_parallel_size"),
            *(f"{ROLLOUT}.gpu_memory_utilization", "processes"),
        ),
        ("trainer.gpus", "rollout.workers"),
        parts.devices,
        named=4,
    ),
    Entry(
        (
            *("reward.custom_reward_function.path", "custom_reward_function.path"),
            *("reward.custom_reward_function.name", "custom_reward_function.name"),
        ),
        ("reward.scorer",),
        parts.custom,
    ),
    Entry(("trainer.logger",), ("metrics.sinks",), lambda to: sinks(to, "trainer.logger", LOGGERS)),
    same("trainer.project_name", "metrics.project"),
    Entry(
        ("trainer.experiment_name",), ("run.name",), lambda name: (Put("run.name", run_name(name)),) if name else ()
    ),
    same("data.seed", "run.seed"),
    Entry(("trainer.v1.trainer_mode",), ("schedule.max_staleness",), parts.mode),
    Entry((), (), lambda: (Put("model.train_dtype", "bfloat16", "verl's FSDP engine; weights stay float32"),)),
    unless("data.shuffle", True, "unsupported", "prompts are shuffled in every epoch, by run.seed"),
    flag("reward.reward_model.enable", "unsupported", "a reward model is called by a function of yours"),
    flag("reward_model.enable", "unsupported", "a reward model is called by a function of yours"),
    Entry(
        tuple(f"{ROLLOUT}.multi_turn.{name}" for name in ("enable", "function_tool_path", "tool_config_path")),
        ("environment.tools",),
        parts.tools,
    ),
    Entry(
        tuple(f"{ROLLOUT}.multi_turn.{name}" for name in ("enable", "max_assistant_turns", "format")),
        ("environment.max_turns",),
        parts.limits,
    ),
    Entry(("data.custom_cls.path",), ("data.path",), parts.made_rows),
    same("data.apply_chat_template_kwargs", "model.chat_template_kwargs"),
    flag("distillation.enabled", "unsupported", "see trainer.teacher: its settings are not translated"),
    flag("trainer.val_only", "different", "rhymed eval evaluates without training"),
    flag(f"{MODEL}.trust_remote_code", "unsupported", "a model's own Python code is not run"),
)

DROPPED = """
    actor_rollout_ref.* critic.* data.* ray* transfer_queue* global_profiler* skip* distillation*
    trainer.* algorithm.* reward* custom_reward_function* sandbox_fusion*
"""
"""As in TRL's table."""

VERL = Table("verl", "0.9.1", DEFAULTS, ENTRIES, DROPPED, ("processes", "defaults", "hydra*", "*_target_"))
