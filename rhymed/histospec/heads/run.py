"""Fits a head for a run: from its store, under the weights of its newest checkpoint.

Only reads the run, but for the head's file, which appears at once: a fit can be ended at any time, and next to a
living run. The file says of which weights it is (`version`) and how many of its drafts were right on samples that it
was not trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rhymed.config import Config
from rhymed.config.load import load_run
from rhymed.errors import ConfigError
from rhymed.histospec.heads.fit import Fitting, fit, vocabulary
from rhymed.histospec.heads.model import Head, begin, load
from rhymed.histospec.heads.samples import States, Text, fitting_in, load_policy, newest, states
from rhymed.histospec.heads.score import Score, score
from rhymed.inputs.models import resolve_model
from rhymed.run.checkpoint import newest as newest_checkpoint
from rhymed.run.folder import no_run
from rhymed_store.shards.browse import StoreReader

HELD_OUT = 0.1  # of the samples
LEAST_SAMPLES = 16


@dataclass(frozen=True)
class Options:
    samples: int = 256  # the newest ones
    vocabulary: int = 2048  # tokens that the head drafts
    width: int = 0  # of its hidden layer; 0: that of the policy
    fitting: Fitting = field(default_factory=Fitting)
    again: bool = True  # begin at the head that is there


@dataclass(frozen=True)
class Fitted:
    head: Head
    score: Score
    samples: int
    version: int  # steps trained of the policy that it was fitted to


def fit_run(folder: Path, out: Path, options: Options, report: Callable[[str], None]) -> Fitted:
    """Blocking: minutes. Raises `ConfigError` where the run has no model or too few samples."""
    if not (folder / "config.json").exists():
        raise ConfigError(no_run(folder))
    config = load_run(folder)
    source, version = _policy(config, folder)
    texts = _texts(folder, options.samples)
    report(f"policy   {source}")
    policy = load_policy(source)
    base: Any = getattr(policy, policy.base_model_prefix)
    output_VD = policy.get_output_embeddings().weight.detach().float()
    texts = fitting_in(texts, output_VD.shape[1])
    tokens = sum(len(text.tokens) - text.prompt for text in texts)
    report(f"samples  {len(texts)} of steps {texts[-1].step} to {texts[0].step}, {tokens:,} response tokens")
    held = math.ceil(len(texts) * HELD_OUT)
    unseen, seen = states(base, texts[:held]), states(base, texts[held:])
    head = _start(policy, seen, out, options, output_VD)
    report(f"head     {len(head.ids_R):,} of {len(output_VD):,} tokens")
    temperature = config.rollout.temperature or 1.0
    head = fit(head, seen, output_VD[head.ids_R], temperature, options.fitting, _passes(report, options.fitting))
    found = score(head, unseen, output_VD, temperature)
    head.about.update(
        run=config.run.name,
        version=str(version),
        samples=str(len(texts)),
        coupled=" ".join(f"{share:.3f}" for share in found.coupled),
        likeliest=" ".join(f"{share:.3f}" for share in found.likeliest),
    )
    head.save(out)
    return Fitted(head, found, len(texts), version)


def _policy(config: Config, folder: Path) -> tuple[Path, int]:
    """The newest checkpoint, else the model that the run begins with; of adapters always the latter."""
    if config.rollout.engine != "vllm":
        raise ConfigError(f"rollout.engine = {config.rollout.engine!r}: a head is for a model, and this run has none")
    found = None if config.trainer.lora else newest_checkpoint(folder / "checkpoints")
    return (resolve_model(config), 0) if found is None else (found.folder, found.step)


def _texts(folder: Path, most: int) -> list[Text]:
    with StoreReader(folder / "store") as reader:
        texts = newest(reader.browse, most)
    if len(texts) < LEAST_SAMPLES:
        raise ConfigError(f"{folder} has {len(texts)} samples; a head is fitted to {LEAST_SAMPLES} at least")
    return texts


def _start(policy: Any, seen: States, out: Path, options: Options, output_VD: Any) -> Head:
    """The head that is there, if it is for this model; else a new one."""
    size, width = output_VD.shape
    if options.again and out.exists():
        try:
            return load(out, width, size)
        except ConfigError:
            pass  # it is replaced
    ids_R = vocabulary(seen.token_N, size, options.vocabulary)
    embeddings = policy.get_input_embeddings().weight.detach().float()
    return begin(ids_R, embeddings, output_VD, options.width or width)


def _passes(report: Callable[[str], None], fitting: Fitting) -> Callable[[int, float], None]:
    return lambda done, loss: report(f"pass     {done}/{fitting.passes}, loss {loss:.3f}")
