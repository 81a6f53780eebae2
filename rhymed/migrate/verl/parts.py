"""Single settings of verl and what each becomes; the losses are in `rhymed.migrate.verl.loss`. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rhymed.migrate.entries import Item, Note, Put
from rhymed.migrate.values import run_name

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIM = f"{ACTOR}.optim"


def _files(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)] if value else []


def train(files: Any, key: str | None, limit: int | None, overlong: bool | None) -> Iterator[Item]:
    shared: dict[str, Any] = {"prompt_column": key} if key and key != "prompt" else {}
    shared |= {"limit": limit} if limit and limit > 0 else {}
    shared |= {"overlong": "drop"} if overlong else {}
    paths = _files(files)
    if len(paths) == 1:
        yield from (Put(f"data.{name}", value) for name, value in {"path": paths[0], **shared}.items())
    else:
        yield Put("data.datasets", [{"path": path, **shared, "weight": 1.0} for path in paths])
        why = "verl puts files one after the other; here each has a weight, its share of the prompts"
        yield Note("data.train_files", "different", why)


def held_out(files: Any, limit: int | None) -> Iterator[Item]:
    shared = {"limit": limit} if limit and limit > 0 else {}
    taken: dict[str, dict[str, Any]] = {}
    for path in _files(files):
        stem = run_name(PurePosixPath(path).stem)
        name = stem if stem not in taken else f"{stem}-{len(taken) + 1}"
        taken[name] = {"name": name, "path": path, **shared}
    if taken:
        yield Put("eval.datasets", list(taken.values()))


def evaluation(every: int, first: bool, n: int, temperature: float, sample: bool) -> Iterator[Item]:
    if every > 0:
        yield Put("eval.every", every, of=("trainer.test_freq",))
        yield Put("eval.at_start", bool(first), of=("trainer.val_before_train",))
    yield Put("eval.samples", n, of=(f"{ROLLOUT}.val_kwargs.n",))
    yield Put("eval.temperature", temperature if sample else 0.0, of=(f"{ROLLOUT}.val_kwargs.temperature",))


def batch(prompts: int, mini: int, group: int, epochs: int) -> Iterator[Item]:
    yield Put("rollout.prompts_per_step", prompts, of=("data.train_batch_size",))
    yield Put("rollout.group_size", group, of=(f"{ROLLOUT}.n",))
    yield Put(
        "trainer.minibatches",
        max(1, prompts // mini),
        f"{prompts} prompts / {mini}",
        (f"{ACTOR}.ppo_mini_batch_size",),
    )
    if prompts % mini:
        yield Note(f"{ACTOR}.ppo_mini_batch_size", "unsupported", f"{mini} does not divide {prompts} prompts")
    if epochs > 1:
        yield Note(f"{ACTOR}.ppo_epochs", "unsupported", "each sample is trained on once per step")


def micro(dynamic: bool | None, tokens: int, samples: int | None, prompt: int, response: int) -> Iterator[Item]:
    if dynamic or not samples:
        yield Put("trainer.micro_tokens", tokens, "" if dynamic else "changes memory and speed only")
    else:
        yield Put("trainer.micro_tokens", samples * (prompt + response), f"{samples} samples of full length")


def warmup(steps: int, ratio: float, total: int | None) -> Iterator[Item]:
    if steps and steps > 0:
        yield Put("trainer.warmup_steps", steps)
    elif ratio and total and total > 0:
        yield Put("trainer.warmup_steps", max(1, round(total * ratio)), f"{ratio:g} of total_training_steps")
    elif ratio:
        why = (
            f"{ratio:g} of all steps: set trainer.warmup_steps to that share of the steps that `rhymed check` prints"
        )
        yield Note(f"{OPTIM}.lr_warmup_steps_ratio", "unknown", why)


def schedule(kind: str, old: str | None, least: float | None) -> Iterator[Item]:
    chosen = old or kind
    yield Put("trainer.schedule", chosen if chosen in ("constant", "cosine") else "constant")
    if chosen == "cosine":
        yield Put("trainer.min_lr_ratio", least or 0.0)
    elif chosen != "constant":
        yield Note(f"{OPTIM}.lr_scheduler_type", "unsupported", f"there is no {chosen!r} here: constant is written")


def length(epochs: int, steps: int | None) -> Iterator[Item]:
    yield Put("trainer.epochs", epochs, of=("trainer.total_epochs",))
    if steps and steps > 0:
        yield Put("trainer.steps", steps, of=("trainer.total_training_steps",))


def lora(rank: int, alpha: float, targets: Any) -> Iterator[Item]:
    if rank:
        yield Put("trainer.lora.rank", rank, of=(f"{MODEL}.lora_rank",))
        yield Put("trainer.lora.alpha", float(alpha), of=(f"{MODEL}.lora_alpha",))
        if targets != "all-linear":
            yield Put("trainer.lora.targets", [targets] if isinstance(targets, str) else list(targets))


def devices(nodes: int, gpus: int, parallel: int, memory: float, processes: int | None) -> Iterator[Item]:
    """`processes`: asked for by --gpus."""
    gpus = gpus if processes is None else processes
    if gpus == 0:
        yield Put("trainer.device", "cpu")
        return
    parallel = min(parallel, gpus)
    yield Put("trainer.gpus", gpus, of=("trainer.n_gpus_per_node",))
    yield Put("rollout.workers", max(1, gpus // parallel) * nodes, "engines: all GPUs / tensor_model_parallel_size")
    yield Put("rollout.tensor_parallel", parallel, of=(f"{ROLLOUT}.tensor_model_parallel_size",))
    yield Put("rollout.gpu_memory", memory, of=(f"{ROLLOUT}.gpu_memory_utilization",))
    yield Put("schedule.colocate", True, "verl's engines and trainer take turns on the same GPUs")
    if nodes > 1:
        yield Put("trainer.nodes", nodes)
        why = "set net.ranks to an address of the first machine; see docs/machines.md"
        yield Note("trainer.nnodes", "unknown", why)


def model(path: Any) -> Iterator[Item]:
    yield Put("model.path", path or "MODEL", "" if path else "to be set: a folder, a GGUF file or a hub id")
    if not path:
        yield Note(f"{MODEL}.path", "unknown", "the source names no model: set model.path")


def sinks(logger: Any) -> Iterator[Item]:
    names = _files(logger)
    if sinks := [name for name in names if name in ("wandb", "mlflow", "trackio")]:
        yield Put("metrics.sinks", sinks, "in addition to TensorBoard, metrics.jsonl and the dashboard")
    if others := [name for name in names if name in ("swanlab", "vemlp_wandb", "clearml")]:
        yield Note(
            "trainer.logger", "unsupported", f"there is no sink {', '.join(others)}; metrics.jsonl has every metric"
        )


def custom(new: str | None, old: str | None, name: str | None, name_old: str | None) -> Iterator[Item]:
    if path := new or old:
        yield Put("reward.scorer", f"{path}:{name or name_old or 'compute_score'}", "unchanged: verl's parameters")
    else:
        yield Put("reward.scorer", "math", "verl chooses a function by data_source; try this one with `rhymed check`")
        why = "verl's function for data_source is not part of rhymed: math compares with math-verify"
        yield Note("reward.custom_reward_function.path", "different", why)


def mode(mode: str) -> Iterator[Item]:
    if mode != "sync":
        yield Put("schedule.max_staleness", 1, f"trainer_mode = {mode}: engines are a step ahead")
        yield Note("trainer.v1.trainer_mode", "different", "schedule.max_staleness bounds how old tokens may be")
