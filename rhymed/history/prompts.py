"""How predictable each prompt is, per epoch, and which are the most and the least predictable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from rhymed.history.similarity import count_predicted
from rhymed.style import plain_table
from rhymed.text import counted, number
from rhymed_store.inspect.browse import Response
from rhymed_store.inspect.epochs import epochs_of, is_trained

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 5  # prompts at either end
LAST_EPOCHS = 6  # shown

Predictions = dict[int, tuple[int, int]]
"""Epoch -> its tokens, and how many were predicted from the epoch before; only for epochs with a predecessor."""


@dataclass(frozen=True)
class PromptRow:
    """Training epochs alone."""

    prompt: str
    epochs: int
    length_mean: float  # response tokens, of its last epoch
    reward_mean: float | None  # likewise
    predicted: dict[
        int, float
    ]  # epoch -> share of its tokens predicted from the epoch before (for 0: the newest imported)

    @property
    def last(self) -> float:
        return self.predicted[max(self.predicted)]


def by_epoch(responses: Iterable[Response]) -> dict[int, list[Response]]:
    """Of one prompt, oldest first."""
    responses = list(responses)
    numbers = epochs_of(response.info.id.step for response in responses)
    epochs: dict[int, list[Response]] = defaultdict(list)
    for response in responses:
        epochs[numbers[response.info.id.step]].append(response)
    return epochs


def predictions(epochs: dict[int, list[Response]]) -> Predictions:
    tokens = {epoch: [response.tokens for response in responses] for epoch, responses in epochs.items()}
    return {
        epoch: (sum(map(len, now)), count_predicted(tokens[epoch - 1], now))
        for epoch, now in tokens.items()
        if epoch - 1 in tokens
    }


def prompt_row(prompt: str, epochs: dict[int, list[Response]], counts: Predictions) -> PromptRow | None:
    """None where no training epoch has a predecessor."""
    shares = {epoch: hits / tokens for epoch, (tokens, hits) in counts.items() if is_trained(epoch) and tokens}
    if not shares:
        return None
    last = [response.info for response in epochs[max(filter(is_trained, epochs))]]
    rewards = [info.reward for info in last if info.reward is not None]
    return PromptRow(
        prompt=prompt,
        epochs=sum(map(is_trained, epochs)),
        length_mean=fmean(info.length for info in last),
        reward_mean=fmean(rewards) if rewards else None,
        predicted=shares,
    )


def render(rows: Sequence[PromptRow], most: int = SHOWN) -> list[RenderableType]:
    """At most `most` prompts at either end; one table where that covers all."""
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
    table = plain_table()
    table.add_column(heading, no_wrap=True)
    for column in ("epochs", "length", "reward"):
        table.add_column(column, justify="right")
    table.add_column("predicted", no_wrap=True)
    for row in rows:
        table.add_row(
            row.prompt, str(row.epochs), f"{row.length_mean:.1f}", number(row.reward_mean, ".3f"), _shares(row)
        )
    return table


def _shares(row: PromptRow) -> str:
    """In columns of equal width, so that rows with as many epochs align."""
    shares = [f"{row.predicted[epoch]:>4.0%}" for epoch in sorted(row.predicted)]
    return ("… " if len(shares) > LAST_EPOCHS else "") + " ".join(shares[-LAST_EPOCHS:])
