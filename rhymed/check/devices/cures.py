"""Which changes of settings make a run fit. Pure: every change is tried by the arithmetic that found the problem.

A change is a list of options, the mildest first. If no change alone is enough, several are combined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rhymed.check.devices.needs import BATCH_TOKENS
from rhymed.check.memory import full_length
from rhymed.config import Config, Lora

Option = tuple[str, Config]
"""What to do, in words, and the settings after it."""
Change = Callable[[Config], Iterator[Option]]
Fits = Callable[[Config], bool]

MOST_RANKS = 1024
LEAST_RESPONSE, LEAST_BATCH, LEAST_AT_ONCE = 256, 2048, 8  # below, a run is another one
LARGEST_SHARE = 0.95  # of a GPU for an engine
NOTHING = "no setting is enough: choose a smaller model, or larger GPUs"


def advice(config: Config, changes: Sequence[Change], fits: Fits) -> str:
    """Every change that suffices; else the first combination that does. Settings that change are not validated."""
    if alone := [found for change in changes if (found := _mildest(config, change, fits))]:
        return ", or ".join(alone)
    for count in range(2, len(changes) + 1):
        for chosen in itertools.combinations(changes, count):
            if found := _together(config, chosen, fits):
                return found
    return NOTHING


def _mildest(config: Config, change: Change, fits: Fits) -> str:
    return next((text for text, after in change(config) if fits(after)), "")


def _together(config: Config, changes: Sequence[Change], fits: Fits) -> str:
    """The mildest option of each, the last change first, with which those before it still suffice. Empty: there is
    none."""
    said: list[str] = []
    left = list(changes)
    while left:
        change = left.pop()
        sufficient = (one for one in change(config) if fits(_strongest(one[1], left)))
        text, config = next(sufficient, ("", config))
        if not text:
            return ""
        said.append(text)
    return " and ".join(said)


def _strongest(config: Config, changes: Sequence[Change]) -> Config:
    for change in reversed(changes):
        *_, (_, config) = [("", config), *change(config)]
    return config


def changed(config: Config, section: str, **values: Any) -> Config:
    """With other values in a section. They are not validated."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def _halves(value: int, least: int) -> Iterator[int]:
    """Down to `least`, which is the last."""
    while value > least:
        yield (value := max(least, value // 2))


# Of the trainer


def recompute(config: Config) -> Iterator[Option]:
    if not config.trainer.gradient_checkpointing:
        text = "set trainer.gradient_checkpointing = true"
        yield text, changed(config, "trainer", gradient_checkpointing=True)


def smaller_passes(config: Config) -> Iterator[Option]:
    """Never less than one sample, which is a pass of its own."""
    for tokens in _halves(config.trainer.micro_tokens, full_length(config.rollout)):
        yield f"lower trainer.micro_tokens to {tokens}", changed(config, "trainer", micro_tokens=tokens)


def shorter_samples(config: Config) -> Iterator[Option]:
    """Where a pass has only one of them."""
    if full_length(config.rollout) < config.trainer.micro_tokens:
        return
    for text, shorter in shorter_responses(config):
        tokens = full_length(shorter.rollout)
        if tokens >= config.trainer.micro_tokens:
            yield text, shorter
        else:
            yield f"{text} and trainer.micro_tokens to {tokens}", changed(shorter, "trainer", micro_tokens=tokens)


def shorter_responses(config: Config) -> Iterator[Option]:
    for tokens in _halves(config.rollout.max_response_length, LEAST_RESPONSE):
        text = f"lower rollout.max_response_length to {tokens}"
        yield text, changed(config, "rollout", max_response_length=tokens)


def more_ranks(config: Config) -> Iterator[Option]:
    ranks = config.trainer.world
    while (ranks := 2 * ranks) <= MOST_RANKS:
        text = f"train on {ranks} GPUs (trainer.gpus, trainer.nodes)"
        yield text, changed(config, "trainer", gpus=ranks, nodes=1)


def adapters(config: Config) -> Iterator[Option]:
    if not config.trainer.lora:
        yield "train adapters only ([trainer.lora])", changed(config, "trainer", lora=Lora())


def half_precision(config: Config) -> Iterator[Option]:
    if config.model.train_dtype == "float32":
        yield "set model.train_dtype = 'bfloat16'", changed(config, "model", train_dtype="bfloat16")


TRAINER: tuple[Change, ...] = (recompute, smaller_passes, shorter_samples, half_precision, more_ranks, adapters)


# Of an engine


def larger_share(config: Config) -> Iterator[Option]:
    if config.rollout.gpu_memory < LARGEST_SHARE:
        text = f"raise rollout.gpu_memory to {LARGEST_SHARE:g}"
        yield text, changed(config, "rollout", gpu_memory=LARGEST_SHARE)


def smaller_batch(config: Config) -> Iterator[Option]:
    for tokens in _halves(config.rollout.batch_tokens or BATCH_TOKENS, LEAST_BATCH):
        yield f"lower rollout.batch_tokens to {tokens}", changed(config, "rollout", batch_tokens=tokens)


def fewer_at_once(config: Config) -> Iterator[Option]:
    for samples in _halves(config.rollout.max_concurrency, LEAST_AT_ONCE):
        yield f"lower rollout.max_concurrency to {samples}", changed(config, "rollout", max_concurrency=samples)


def quantized(config: Config) -> Iterator[Option]:
    if not config.rollout.quantization:
        yield "set rollout.quantization = 'fp8'", changed(config, "rollout", quantization="fp8")


def wider(sizes: Sequence[int]) -> Change:
    """`sizes`: of `rollout.tensor_parallel` that divide the model."""

    def change(config: Config) -> Iterator[Option]:
        for size in sizes:
            if size > config.rollout.tensor_parallel:
                text = f"raise rollout.tensor_parallel to {size}"
                yield text, changed(config, "rollout", tensor_parallel=size)

    return change


ENGINE: tuple[Change, ...] = (larger_share, smaller_batch, fewer_at_once, shorter_responses, quantized)
