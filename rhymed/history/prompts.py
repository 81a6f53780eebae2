"""How predictable each prompt is, epoch by epoch, and which ones are the most and the least. Pure but for drawing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from rhymed.history.similarity import predicted
from rhymed.text import counted, number
from rhymed_store.inspect.browse import Response
from rhymed_store.inspect.epochs import epochs_of, is_trained

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 5  # prompts at either end
LAST_EPOCHS = 6  # whose share is shown

Likeness = dict[int, tuple[int, int]]
"""Epoch -> of how many tokens how many were predicted from the epoch before; only epochs with one before."""


@dataclass(frozen=True)
class PromptRow:
    """Training epochs alone."""

    prompt: str
    epochs: int
    length_mean: float  # response tokens, of its last epoch
    reward_mean: float | None  # likewise
    predicted: dict[int, float]  # epoch -> share of its tokens, from the epoch before (for 0: the newest imported)

    @property
    def last(self) -> float:
        return self.predicted[max(self.predicted)]


def by_epoch(responses: Iterable[Response]) -> dict[int, list[Response]]:
    """Of one prompt, oldest first."""
    known = list(responses)
    numbers = epochs_of(response.info.id.step for response in known)
    found: dict[int, list[Response]] = defaultdict(list)
    for response in known:
        found[numbers[response.info.id.step]].append(response)
    return found


def likeness(found: dict[int, list[Response]]) -> Likeness:
    tokens = {epoch: [response.tokens for response in one] for epoch, one in found.items()}
    return {
        epoch: (sum(map(len, now)), predicted(tokens[epoch - 1], now))
        for epoch, now in tokens.items()
        if epoch - 1 in tokens
    }


def prompt_row(prompt: str, found: dict[int, list[Response]], alike: Likeness) -> PromptRow | None:
    """None: no training epoch could be compared."""
    shares = {epoch: hits / asked for epoch, (asked, hits) in alike.items() if is_trained(epoch) and asked}
    if not shares:
        return None
    last = [response.info for response in found[max(filter(is_trained, found))]]
    rewards = [info.reward for info in last if info.reward is not None]
    return PromptRow(
        prompt=prompt,
        epochs=sum(map(is_trained, found)),
        length_mean=fmean(info.length for info in last),
        reward_mean=fmean(rewards) if rewards else None,
        predicted=shares,
    )


def render(rows: Sequence[PromptRow], most: int = SHOWN) -> list[RenderableType]:
    """`most` prompts at either end; all in one table where they are no more than both."""
    if not rows:
        return []
    ranked = sorted(rows, key=lambda row: (-row.last, row.prompt))
    if len(ranked) <= 2 * most:
        tables = [_table("prompt", ranked)]
    else:
        tables = [_table("most predictable", ranked[:most]), _table("least predictable", ranked[: -most - 1 : -1])]
    of = f"epoch by epoch; {counted(len(rows), 'prompt')} ranked by the last one"
    return [*tables, f"predicted   {of}\nlength      and reward: of the last epoch"]


def _table(heading: str, rows: Sequence[PromptRow]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(heading, no_wrap=True)
    for column in ("epochs", "length", "reward"):
        table.add_column(column, justify="right")
    table.add_column("predicted", no_wrap=True)
    for row in rows:
        table.add_row(
            row.prompt,
            str(row.epochs),
            f"{row.length_mean:.1f}",
            number(row.reward_mean, ".3f"),
            _shares(row),
        )
    return table


def _shares(row: PromptRow) -> str:
    """Columns of the same width, so that the same place is the same epoch where all prompts have as many."""
    shares = [f"{row.predicted[epoch]:>4.0%}" for epoch in sorted(row.predicted)]
    return ("… " if len(shares) > LAST_EPOCHS else "") + " ".join(shares[-LAST_EPOCHS:])
