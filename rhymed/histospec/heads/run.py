"""Fits a head for a run: from its store, under the weights of its newest checkpoint.

Only reads the run, but for the head's file, which appears at once: a fit can be ended at any time, and next to a
living run. The file says of which weights it is (`version`) and how many of its drafts were right on samples that it
was not trained on.

`fit_run` is the fit; `score` measures the drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rhymed.core.config import Config
from rhymed.core.config.load import load_run
from rhymed.core.errors import ConfigError
from rhymed.core.run.checkpoint import newest as newest_checkpoint
from rhymed.core.run.folder import no_run
from rhymed.histospec.heads.fit import (
    DEPTH,
    Fitting,
    States,
    Text,
    fit,
    fitting_in,
    load_policy,
    newest,
    states,
    vocabulary,
)
from rhymed.histospec.heads.model import Head, begin, draw, load
from rhymed.inputs.quantised import base_of
from rhymed_store.browse import StoreReader

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
    return (base_of(config), 0) if found is None else (found.folder, found.step)


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


# How many of a head's drafts would be right, measured on text that it has not seen, without an engine.
#
# At each position fresh noise is drawn; the policy's token under it and the head's draft under it are compared, with
# the true text before them. A later token of a draft counts given that those before it were right.

PIECE = 256  # positions whose full logits are in memory


class Score(NamedTuple):
    """By depth: the share of right drafts. `coupled`: drawn with the sampler's noise; `likeliest`: the head's most
    probable token."""

    coupled: list[float]
    likeliest: list[float]
    positions: int

    def __str__(self) -> str:
        both = zip(self.coupled, self.likeliest, strict=True)
        return ", ".join(f"{coupled:.0%} ({likeliest:.0%})" for coupled, likeliest in both)


def score(head: Head, states: States, output_VD: torch.Tensor, temperature: float, most: int = 2000) -> Score:
    """`output_VD`: the policy's whole output layer. `most`: positions, evenly spread."""
    starts = torch.nonzero(states.left_N >= DEPTH).flatten()
    starts = starts[torch.linspace(0, len(starts) - 1, min(most, len(starts))).long().unique()]
    right = np.zeros((2, DEPTH))
    for chosen in starts.split(PIECE):
        state = states.hidden_ND[chosen]
        for depth in range(1, DEPTH + 1):
            at = chosen + depth
            state = head.advance(state, states.token_N[at])
            keys, positions = chosen.numpy().astype(np.uint64), states.position_N[at].numpy() + 1
            true = states.hidden_ND[at] @ output_VD.T
            truth = _drawn(true, torch.arange(len(output_VD)), keys, positions, temperature)
            logits = head.logits(state)
            for row, scale in enumerate((temperature, 0.0)):
                right[row, depth - 1] += (_drawn(logits, head.ids_R, keys, positions, scale) == truth).sum()
    shares = right / max(1, len(starts))
    return Score(shares[0].tolist(), shares[1].tolist(), len(starts))


def _drawn(
    logits: torch.Tensor,
    ids: torch.Tensor,
    keys: NDArray[np.uint64],
    positions: NDArray[np.int64],
    temperature: float,
) -> NDArray[np.int32]:
    tokens, lead = np.empty(len(logits), np.int32), np.empty(len(logits), np.float32)
    scale = np.full(len(logits), 1 / temperature if temperature else 0, np.float32)
    draw(logits.numpy(), ids.numpy().astype(np.int32), keys, positions.astype(np.int64), scale, tokens, lead)
    return tokens
