"""What each part of `rhymed bench gpu` runs: other commands of rhymed, small ones on processors. Pure."""

from __future__ import annotations

import sys
from typing import NamedTuple

POLICY = "runs/models/arithmetic"
"""Where `make bench-model` puts the bench policy."""

LONG = "128"  # tokens of a response in `run`


class Cell(NamedTuple):
    """One command. `environment`: variables that it gets besides."""

    part: str
    name: str
    command: tuple[str, ...]
    minutes: float  # that it is given in a plan; four times as much ends it
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.environment), *self.command])


PARTS = {
    "tests": "tests that need a GPU, in a checkout",
    "sampler": "keyed sampling: kernels, torch operations, vLLM's samplers",
    "engine": "tokens per second: vLLM as it is, keyed, with drafts, by turns",
    "exact": "tokens with drafts against tokens without, by type of number and kernels",
    "trainer": "tokens per second, share of the peak and memory of a training step",
    "weights": "from the trainer's parameters to the first token under them",
    "run": "whole runs with and without drafts",
}
"""In the order in which a short time on a GPU is used best."""


def cells(device: str, model: str = "", *, quick: bool = False) -> list[Cell]:
    """Of all parts. `device`: `cuda`, or `cpu` for small versions of what also runs there. `model`: for `engine`,
    `exact`, `weights` and `run`. `quick`: small versions of the benchmarks on a GPU."""
    from rhymed.config import Model

    if device == "cpu":
        return _on_cpu(model or Model().path)
    found = _on_gpu(model or Model().path, chosen=bool(model))
    if not quick:
        return found
    return [cell._replace(command=(*cell.command, "--quick")) for cell in found if "bench" in cell.command]


def _bench(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "rhymed", "bench", *arguments, "--json")


def _run(model: str, drafts: str, *options: str) -> tuple[str, ...]:
    command = (sys.executable, "-m", "rhymed", "run", "configs/quickstart.toml", "--plain")
    settings = (f"model.path={model}", f"drafts.method={drafts}", f"run.name=bench-gpu-{drafts}", *options)
    return (*command, *(part for setting in settings for part in ("-o", setting)))


def _on_gpu(model: str, *, chosen: bool) -> list[Cell]:
    spec = ("spec", "--device", "cuda", "--rounds", "3")
    turns = ("--methods", "stock,none,keyed,history,again", "--batches", "1,16,64", "--epochs", "2")
    same = (*spec[:3], "--rounds", "1", "--methods", "keyed,history,again", "--batches", "1,64", "--epochs", "2")
    models = {"chat": model} if chosen else {"policy": POLICY, "chat": model}
    on_one = ("schedule.colocate=true", "rollout.gpu_memory=0.5", "model.dtype=bfloat16", "net.http=")
    long = (f"rollout.max_response_length={LONG}", "trainer.steps=10")
    return [
        Cell("tests", "marked gpu", (sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-rs", "tests"), 3),
        Cell("sampler", "all sizes", _bench("sampler"), 3),
        *(
            Cell("engine", name, _bench(*spec, "--model", path, *turns, "--temperatures", "1.0,0.3"), 8)
            for name, path in models.items()
        ),
        Cell("exact", "float32", _bench(*same, "--model", model, "--dtype", "float32"), 2),
        Cell("exact", "bfloat16", _bench(*same, "--model", model, "--dtype", "bfloat16"), 2),
        Cell(
            "exact",
            "bfloat16, batch-invariant kernels",
            _bench(*same, "--model", model, "--dtype", "bfloat16"),
            2,
            (("VLLM_BATCH_INVARIANT", "1"),),
        ),
        Cell("trainer", "SmolLM2's shape", _bench("train", "--tokens", "2048,8192,32768"), 5),
        Cell("weights", "all phases", _bench("weights", "--model", model), 3),
        *(Cell("run", f"drafts {drafts}", _run(model, drafts, *on_one, *long), 4) for drafts in ("history", "none")),
    ]


def _on_cpu(model: str) -> list[Cell]:
    """None of `tests`, which need a GPU."""
    small = ("--quick", "--batches", "4", "--epochs", "2", "--rounds", "1")
    spec = ("spec", "--device", "cpu", "--model", model, *small)
    few = ("trainer.steps=2", "rollout.prompts_per_step=2", "net.http=")
    return [
        Cell("sampler", "small", _bench("sampler", "--quick"), 2),
        Cell("engine", "small", _bench(*spec, "--methods", "none,keyed,history"), 4),
        Cell("exact", "float32", _bench(*spec, "--methods", "keyed,history,again"), 4),
        Cell("trainer", "small", _bench("train", "--quick"), 2),
        Cell("weights", "small", _bench("weights", "--quick", "--model", model), 3),
        *(Cell("run", f"drafts {drafts}", _run(model, drafts, *few), 3) for drafts in ("history", "none")),
    ]
