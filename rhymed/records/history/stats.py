"""`rhymed history stats`: sizes, lengths, rewards, and how similar each epoch is to the one before.

Sizes cover the whole store. With very many prompts the rest covers every n-th one (ids are hashes, so it is a fair
sample), and the tokens read are bounded; the result says how much was read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import StoreDamaged
from rhymed.core.style import plain_table
from rhymed.core.text import counted, number, size_of
from rhymed.records.history.prompts import SHOWN, PromptRow, by_epoch, predictions, prompt_row, rank_correlation
from rhymed.records.history.prompts import render as render_prompts
from rhymed_store.browse import Browse, Totals
from rhymed_store.columns import epochs_of, is_trained, title
from rhymed_store.database.reads import SampleRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_PROMPTS = 2000  # whose headers are read
MOST_TOKENS = 2_000_000  # read for the similarity; takes seconds


@dataclass
class Epoch:
    """A training epoch of all prompts that were read, or an epoch of imported history, or an evaluation."""

    lengths: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    means: dict[str, float] = field(default_factory=dict)  # prompt -> mean length
    compared: int = 0  # tokens with an epoch before them
    hits: int = 0  # of these, predicted


@dataclass(frozen=True)
class EpochRow:
    """None: undefined, as for the first epoch."""

    epoch: int  # see rhymed_store.columns
    name: str
    prompts: int
    samples: int
    length_mean: float
    reward_mean: float | None
    predicted: float | None  # share of tokens that a simple drafter predicts from the epoch before
    rank_correlation: float | None  # of prompts' mean lengths with the epoch before


@dataclass(frozen=True)
class Stats:
    """Lengths in response tokens; those and the reward are of the training epochs alone."""

    totals: Totals
    bytes_a_token: float | None
    prompts: int  # with samples
    prompts_read: int  # for all that follows
    prompts_compared: int  # for `predicted`
    damaged: list[str]  # why prompts could not be read
    length_mean: float | None
    length_median: float | None
    length_max: int | None
    reward_mean: float | None
    epochs: list[EpochRow]
    by_prompt: list[PromptRow]  # those whose training epochs could be compared

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "totals": self.totals._asdict()}


def stats(browse: Browse, most_prompts: int = MOST_PROMPTS, most_tokens: int = MOST_TOKENS) -> Stats:
    totals, ids = browse.totals(), browse.ids()
    stride = -(-len(ids) // most_prompts) or 1
    chosen = ids[::stride]
    epochs: dict[int, Epoch] = defaultdict(Epoch)
    compared, damaged = 0, []
    by_prompt: list[PromptRow] = []
    for prompt in chosen:
        headers = browse.headers(prompt)
        numbers = _count(epochs, prompt, headers)
        tokens = sum(record.length for _, record in headers)
        has_neighbours = any(epoch - 1 in numbers.values() for epoch in numbers.values())
        if tokens <= most_tokens and has_neighbours:
            most_tokens -= tokens
            try:
                row = _compare(epochs, browse, prompt)
            except StoreDamaged as error:
                damaged.append(str(error))
            else:
                compared += 1
                by_prompt += [row] if row else []
    lengths = [length for number, epoch in epochs.items() if is_trained(number) for length in epoch.lengths]
    rewards = [reward for number, epoch in epochs.items() if is_trained(number) for reward in epoch.rewards]
    return Stats(
        totals=totals,
        bytes_a_token=(totals.used_bytes - totals.passing_bytes) / totals.tokens if totals.tokens else None,
        prompts=len(ids),
        prompts_read=len(chosen),
        prompts_compared=compared,
        damaged=damaged,
        length_mean=fmean(lengths) if lengths else None,
        length_median=median(lengths) if lengths else None,
        length_max=max(lengths, default=None),
        reward_mean=fmean(rewards) if rewards else None,
        epochs=[_row(epoch, epochs[epoch], epochs.get(epoch - 1)) for epoch in sorted(epochs)],
        by_prompt=by_prompt,
    )


def _count(epochs: dict[int, Epoch], prompt: str, headers: list[SampleRecord]) -> dict[int, int]:
    """Add one prompt's headers; returns its steps and their epochs."""
    numbers = epochs_of(sample.step for sample, _ in headers)
    lengths: dict[int, list[int]] = defaultdict(list)
    for sample, record in headers:
        epoch = numbers[sample.step]
        lengths[epoch].append(record.length)
        if (reward := record.info(sample).reward) is not None:
            epochs[epoch].rewards.append(reward)
    for epoch, own in lengths.items():
        epochs[epoch].lengths.extend(own)
        epochs[epoch].means[prompt] = fmean(own)
    return numbers


def _compare(epochs: dict[int, Epoch], browse: Browse, prompt: str) -> PromptRow | None:
    by_number = by_epoch(browse.responses(prompt))
    counts = predictions(by_number)
    for epoch, (tokens, hits) in counts.items():
        epochs[epoch].compared += tokens
        epochs[epoch].hits += hits
    return prompt_row(prompt, by_number, counts)


def _row(number: int, epoch: Epoch, before: Epoch | None) -> EpochRow:
    both = sorted(epoch.means.keys() & before.means.keys()) if before else []
    return EpochRow(
        epoch=number,
        name=title(number),
        prompts=len(epoch.means),
        samples=len(epoch.lengths),
        length_mean=fmean(epoch.lengths),
        reward_mean=fmean(epoch.rewards) if epoch.rewards else None,
        predicted=epoch.hits / epoch.compared if epoch.compared else None,
        rank_correlation=rank_correlation([before.means[p] for p in both], [epoch.means[p] for p in both])
        if before
        else None,
    )


def render(stats: Stats, name: str, most: int = SHOWN) -> RenderableType:
    """Pure: the tables for people. `most`: prompts listed at either end of predictability."""
    from rich.console import Group

    shown = [row for row in stats.epochs if is_trained(row.epoch)]
    parts: list[Any] = ["\n".join(_head(stats, name, len(shown)))]
    for rows, comparable in ((shown, True), ([row for row in stats.epochs if not is_trained(row.epoch)], False)):
        if rows:
            parts.append(_table(rows))
        if comparable and any(row.predicted is not None or row.rank_correlation is not None for row in rows):
            parts.append(_legend(stats))
    return Group(*parts, *render_prompts(stats.by_prompt, most))


def _head(stats: Stats, name: str, epochs: int) -> list[str]:
    totals = stats.totals
    lines = [
        f"{name}: {counted(stats.prompts, 'prompt')}, {counted(totals.samples, 'sample')},"
        f" {counted(totals.tokens, 'response token')}, {counted(epochs, 'epoch')}"
    ]
    used = f"{size_of(totals.used_bytes)} used"
    if stats.bytes_a_token is not None:
        used += f", {stats.bytes_a_token:.2f} bytes a token at rest"
    if totals.passing_bytes:
        used += f" (and {size_of(totals.passing_bytes)} until the next checkpoint)"
    lines.append(used)
    if stats.length_mean is not None:
        lines.append(
            f"length: mean {stats.length_mean:.1f}, median {stats.length_median:g}, max {stats.length_max}"
            f"   reward: mean {number(stats.reward_mean, '.3f')}"
        )
    if stats.prompts_read < stats.prompts:
        lines.append(f"the rest, and lengths and reward: of a sample of {counted(stats.prompts_read, 'prompt')}")
    if stats.damaged:
        lines.append(f"damaged: {counted(len(stats.damaged), 'prompt')}; the first: {stats.damaged[0]}")
    return lines


def _table(rows: list[EpochRow]) -> RenderableType:
    table = plain_table()
    table.add_column("")
    for column in ("prompts", "samples", "length", "reward", "predicted", "rank corr."):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.prompts:,}",
            f"{row.samples:,}",
            f"{row.length_mean:.1f}",
            number(row.reward_mean, ".3f"),
            number(row.predicted, ".0%"),
            number(row.rank_correlation, ".2f"),
        )
    return table


def _legend(stats: Stats) -> str:
    partly = stats.prompts_compared < stats.prompts_read
    of = f"\n            (of {counted(stats.prompts_compared, 'prompt')})" if partly else ""
    return (
        f"predicted   share of tokens that a simple drafter predicts from the epoch before{of}\n"
        "rank corr.  of prompts' mean lengths with those of the epoch before; 1: the same order"
    )
