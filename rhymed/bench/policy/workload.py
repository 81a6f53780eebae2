"""Workloads of the engine benchmarks: prompts of the bench policy, and of a small chat model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rhymed.bench.policy.model import OUT, RESPONSE
from rhymed.config import Config, Data, Model
from rhymed.config.load import load_run
from rhymed.errors import ConfigError
from rhymed.histospec.heads.place import head_file
from rhymed.run.checkpoint import newest

PROMPTS = 64
CHAT_RESPONSE = 200  # tokens
QUESTIONS = {"min_terms": 3, "max_terms": 4, "min_digits": 2, "max_digits": 3}


@dataclass(frozen=True)
class BenchWorkload:
    """`prompts`: token ids. Responses have at most `longest` tokens."""

    name: str
    model: Path
    prompts: list[list[int]]
    longest: int
    head: Path | None = None  # a learned head of the model


def workloads(model: Path | None = None) -> Iterator[BenchWorkload]:
    """Of one model, of a run (its prompts, newest checkpoint and head), or of the bench policy and then SmolLM2.
    Raises `ConfigError` if the policy is missing."""
    if model is not None and (model / "store").is_dir():
        yield _of_run(model)
        return
    policy = model is not None and model.resolve() == OUT.resolve()  # any other folder is asked other questions
    if model is None or policy:
        if not (OUT / "train.jsonl").is_file():
            raise ConfigError(f"{OUT} does not exist: `make bench-model` builds it")
        yield _workload("bench policy", Config(model=Model(path=str(OUT)), data=Data(path=str(OUT / "train.jsonl"))))
    if not policy:
        chat = Model(path=str(model)) if model else Model()
        questions = Data(task="chain_sum", args=QUESTIONS, size=PROMPTS)
        yield _workload(Path(chat.path).name, Config(model=chat, data=questions), CHAT_RESPONSE)


def _of_run(run: Path) -> BenchWorkload:
    config, checkpoint = load_run(run), newest(run / "checkpoints")
    workload, head = _workload(config.run.name, config, config.rollout.max_response_length), head_file(config, run)
    folder = checkpoint.folder if checkpoint else workload.model
    return replace(workload, model=folder, head=head if head.exists() else None)


def _workload(name: str, config: Config, longest: int = RESPONSE) -> BenchWorkload:
    from rhymed.inputs.datasets import load_rows
    from rhymed.inputs.models import resolve_model
    from rhymed.inputs.render import load_renderer

    render = load_renderer(config)
    rows = list(itertools.islice(load_rows(config), PROMPTS))
    return BenchWorkload(name, resolve_model(config), [render(name, row) for row in rows], longest)
