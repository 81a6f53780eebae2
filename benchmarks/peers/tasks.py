"""The tasks, and what makes the two trainers do the same: sizes, rows, learning rate, loss, sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.inputs.datasets import placed_rows
from rhymed.inputs.models import resolve_model
from rhymed.inputs.render import load_renderer, messages
from rhymed.inputs.rows import Row

TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "quickstart": ("configs/quickstart.toml", ()),
    "long": ("configs/arithmetic.toml", ("rollout.prompts_per_step=32",)),
}
"""Name -> configuration and changes. long: responses of hundreds of tokens; `make bench-model` trains its model."""

FIXED = ("eval.every=0", "eval.datasets=[]", "run.report=false", "net.http=", "trainer.epochs=1000")


def settings(task: str, steps: int, more: tuple[str, ...] = ()) -> list[str]:
    """Changes to the task's configuration."""
    return [*TASKS[task][1], *FIXED, f"trainer.steps={steps}", "trainer.algorithm=grpo", *more]


def file_of(task: str) -> Path:
    return Path(TASKS[task][0])


def load(task: str, steps: int, more: tuple[str, ...] = ()) -> Config:
    return load_config(file_of(task), settings(task, steps, more), {})


def job(config: Config) -> dict[str, Any]:
    """For `benchmarks.peers.trl_run`: arguments of GRPOConfig, the model's folder and the rows. Slow."""
    renderer = load_renderer(config)

    def prompt(where: str, row: Row) -> Any:
        """A chat if the model has a chat template; without one TRL takes text alone, and rhymed joins messages."""
        return messages(config.data, where, row) if renderer.has_template else renderer.text(where, row)

    rows = [{**row, "prompt": prompt(where, row)} for where, row in placed_rows(config)]
    return {
        "arguments": _arguments(config),
        "model": str(resolve_model(config)),
        "rows": rows,
        "config": config.model_dump(mode="json"),
    }


def _arguments(config: Config) -> dict[str, Any]:
    trainer, rollout = config.trainer, config.rollout
    recipe, per_pass = trainer.recipe, _samples_per_pass(config)
    return {
        "per_device_train_batch_size": per_pass,
        "gradient_accumulation_steps": rollout.prompts_per_step * rollout.group_size // per_pass,
        "num_generations": rollout.group_size,
        "max_completion_length": rollout.max_response_length,
        "max_steps": trainer.steps,
        "learning_rate": trainer.lr,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": trainer.warmup_steps,
        "adam_beta1": trainer.betas[0],
        "adam_beta2": trainer.betas[1],
        "weight_decay": trainer.weight_decay,
        "max_grad_norm": trainer.max_grad_norm,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "beta": recipe.kl_coef,
        "epsilon": recipe.clip_eps_low,
        "epsilon_high": recipe.clip_eps_high,
        "loss_type": "grpo",
        "scale_rewards": "group",
        "gradient_checkpointing": trainer.gradient_checkpointing,
        "bf16": config.model.train_dtype == "bfloat16",
        "seed": config.run.seed,
    }


def _samples_per_pass(config: Config) -> int:
    """The most that divide a step and fit `trainer.micro_tokens` at full length."""
    rollout = config.rollout
    samples = rollout.prompts_per_step * rollout.group_size
    longest = rollout.max_prompt_length + rollout.max_response_length
    fitting = max(1, config.trainer.micro_tokens // longest)
    return max(size for size in range(1, samples + 1) if samples % size == 0 and size <= fitting)
