"""`rhymed history stats`: sizes, lengths and rewards, by epoch.

Sizes cover the whole store. With very many prompts the rest covers every n-th one (ids are hashes, so it is a fair
sample); the result says how much was read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rhymed.core.style import plain_table
from rhymed.core.text import counted, number, size_of
from rhymed_store.browse import Browse, Totals
from rhymed_store.columns import epochs_of, is_trained, title
from rhymed_store.database.reads import SampleRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_PROMPTS = 2000  # whose headers are read


@dataclass
class Epoch:
    """A training epoch of all prompts that were read, or an epoch of imported history, or an evaluation."""

    prompts: int = 0
    lengths: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class EpochRow:
    epoch: int  # see rhymed_store.columns
    name: str
    prompts: int
    samples: int
    length_mean: float
    reward_mean: float | None


@dataclass(frozen=True)
class Stats:
    """Lengths in response tokens; those and the reward are of the training epochs alone."""

    totals: Totals
    bytes_a_token: float | None
    prompts: int  # with samples
    prompts_read: int  # for all that follows
    length_mean: float | None
    length_median: float | None
    length_max: int | None
    reward_mean: float | None
    epochs: list[EpochRow]

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "totals": self.totals._asdict()}


def stats(browse: Browse, most_prompts: int = MOST_PROMPTS) -> Stats:
    totals, ids = browse.totals(), browse.ids()
    stride = -(-len(ids) // most_prompts) or 1
    chosen = ids[::stride]
    epochs: dict[int, Epoch] = defaultdict(Epoch)
    for prompt in chosen:
        _count(epochs, browse.headers(prompt))
    lengths = [length for number, epoch in epochs.items() if is_trained(number) for length in epoch.lengths]
    rewards = [reward for number, epoch in epochs.items() if is_trained(number) for reward in epoch.rewards]
    return Stats(
        totals=totals,
        bytes_a_token=(totals.used_bytes - totals.passing_bytes) / totals.tokens if totals.tokens else None,
        prompts=len(ids),
        prompts_read=len(chosen),
        length_mean=fmean(lengths) if lengths else None,
        length_median=median(lengths) if lengths else None,
        length_max=max(lengths, default=None),
        reward_mean=fmean(rewards) if rewards else None,
        epochs=[_row(number, epochs[number]) for number in sorted(epochs)],
    )


def _count(epochs: dict[int, Epoch], headers: list[SampleRecord]) -> None:
    """Add one prompt's headers."""
    numbers = epochs_of(sample.step for sample, _ in headers)
    for epoch in set(numbers.values()):
        epochs[epoch].prompts += 1
    for sample, record in headers:
        own = epochs[numbers[sample.step]]
        own.lengths.append(record.length)
        if (reward := record.info(sample).reward) is not None:
            own.rewards.append(reward)


def _row(number: int, epoch: Epoch) -> EpochRow:
    return EpochRow(
        epoch=number,
        name=title(number),
        prompts=epoch.prompts,
        samples=len(epoch.lengths),
        length_mean=fmean(epoch.lengths),
        reward_mean=fmean(epoch.rewards) if epoch.rewards else None,
    )


def render(stats: Stats, name: str) -> RenderableType:
    """Pure: the tables for people."""
    from rich.console import Group

    shown = [row for row in stats.epochs if is_trained(row.epoch)]
    others = [row for row in stats.epochs if not is_trained(row.epoch)]
    return Group("\n".join(_head(stats, name, len(shown))), *(_table(rows) for rows in (shown, others) if rows))


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
    return lines


def _table(rows: list[EpochRow]) -> RenderableType:
    table = plain_table()
    table.add_column("")
    for column in ("prompts", "samples", "length", "reward"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.prompts:,}",
            f"{row.samples:,}",
            f"{row.length_mean:.1f}",
            number(row.reward_mean, ".3f"),
        )
    return table
