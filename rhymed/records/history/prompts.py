"""The prompts of a store: how predictable each one is per epoch, and the list of them.

`prompt_row` and `render` are `rhymed history stats` by prompt, `count_predicted` and `rank_correlation` measure how
similar epochs are, and `listing` is the list of a store's prompts.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rhymed.core.printable import visible
from rhymed.core.steps import is_evaluation
from rhymed.core.style import plain_table
from rhymed.core.text import counted, number
from rhymed.inputs.rows import prompt_text
from rhymed.records.history.catalog import Catalog, Sort
from rhymed_store.browse import Browse, Response
from rhymed_store.columns import epochs_of, is_trained

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


# How similar an epoch is to the previous one: in its tokens, and in which prompts are long. Pure numpy.
#
# The measure is a simple drafter: it looks up the last three tokens in the earlier responses to the same prompt, else
# the last two, else one, and predicts the most frequent next token. Its hit rate bounds what drafts can save.

LONGEST_MATCH = 3  # tokens

Ints = NDArray[np.int64]


def count_predicted(before: Sequence[NDArray[Any]], now: Sequence[NDArray[Any]]) -> int:
    """Tokens of `now` that the drafter predicts from `before`; ties are broken arbitrarily."""
    vocabulary, ranks = np.unique(np.concatenate([*before, *now]), return_inverse=True)
    size = len(vocabulary) + 1  # 0 is padding before a response
    seen, seen_next = _windows(ranks, 0, before, size)
    asked, asked_next = _windows(ranks, sum(map(len, before)), now, size)
    guess = np.zeros(len(asked_next), np.int64)  # 0: no prediction
    for length in range(LONGEST_MATCH, 0, -1):
        low = size**length  # a window of fewer tokens is the last digits of a longer one
        contexts, best = _most_frequent(seen % low, seen_next, size)
        at = np.searchsorted(contexts, asked % low)
        at[at == len(contexts)] = 0
        hit = (contexts[at] == asked % low) & (guess == 0) if len(contexts) else np.zeros(len(guess), bool)
        guess[hit] = best[at[hit]]
    return int(np.count_nonzero(guess == asked_next))


def _windows(ranks: Any, start: int, responses: Sequence[Any], size: int) -> tuple[Ints, Ints]:
    """For every token: the three before it as one number in base `size`, and the token itself, counted from 1."""
    windows, tokens = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for response in responses:
        own = ranks[start : start + len(response)].astype(np.int64) + 1
        padded = np.concatenate([np.zeros(LONGEST_MATCH, np.int64), own])
        window = np.zeros(len(own), np.int64)
        for offset in range(LONGEST_MATCH):
            window = window * size + padded[offset : offset + len(own)]
        windows.append(window)
        tokens.append(own)
        start += len(response)
    return np.concatenate(windows), np.concatenate(tokens)


def _most_frequent(contexts: Ints, following: Ints, size: int) -> tuple[Ints, Ints]:
    """The distinct contexts, ascending, and the most frequent next token of each."""
    distinct, number = np.unique(contexts, return_inverse=True)
    pairs, counts = np.unique(number * size + following, return_counts=True)
    order = np.lexsort((counts, pairs // size))
    last = np.flatnonzero(np.diff(pairs[order] // size, append=-1))
    return distinct, pairs[order][last] % size


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's; None where it is not defined: fewer than three, or all equal on one side."""
    if len(left) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


# `rhymed history show` without a prompt: a store's prompts, those with the least reward first.
#
# A prompt is held out if its samples are of evaluations alone; these come after the prompts that are trained on.

BOILERPLATE = 20  # common first characters of all prompts, from which on they are shown once


def order(browse: Browse, ids: Sequence[str], sort: Sort = "reward", *, held_out: bool | None = None) -> list[str]:
    """The ids of prompts, ascending by their means, unscored ones last, or as they are. `held_out`: only those that
    are, or are not; None: all, held-out ones last."""
    catalog, wanted = Catalog(browse.columns()), set(ids)
    held = catalog.order(sort, down=False, kind="held-out")
    apart = set(held)
    others = [number for number in catalog.order(sort, down=False) if number not in apart]
    found = {True: held, False: others, None: [*others, *held]}[held_out]
    return [id for number in found if (id := catalog.ids[number]) in wanted]


def listing(browse: Browse, ids: Sequence[str]) -> list[dict[str, Any]]:
    return [_listed(browse, prompt) for prompt in ids]


def _listed(browse: Browse, prompt: str) -> dict[str, Any]:
    found = browse.headers(prompt)
    epochs = list(epochs_of(sample.step for sample, _ in found).values())
    trained = sum(map(is_trained, epochs))
    rewards = [reward for sample, record in found if (reward := record.info(sample).reward) is not None]
    return {
        "prompt": prompt,
        "held_out": not trained and any(is_evaluation(epoch) for epoch in epochs),
        "epochs": trained,
        "samples": len(found),
        "length_mean": fmean(record.length for _, record in found),
        "reward_mean": fmean(rewards) if rewards else None,
        "text": prompt_text(browse.row(prompt)),
    }


def render_listing(rows: list[dict[str, Any]], there: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    texts = [" ".join(row["text"].split()) for row in rows]
    start = os.path.commonprefix(texts) if len(texts) > 1 else ""  # noqa: RUF071
    start = start[: start.rfind(" ") + 1] if len(start) > BOILERPLATE else ""
    table = plain_table(expand=True)
    for column in ("prompt", "epochs", "samples", "length", "reward"):
        table.add_column(column, justify="left" if column == "prompt" else "right", no_wrap=True)
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, text in zip(rows, texts, strict=True):
        table.add_row(
            row["prompt"],
            "held-out" if row["held_out"] else str(row["epochs"]),
            str(row["samples"]),
            f"{row['length_mean']:.1f}",
            number(row["reward_mean"], ".3f"),
            Text(visible(f"… {text.removeprefix(start)}" if start else text)),
        )
    left = there - len(rows)
    notes = [f"all texts begin: {visible(start)}…"] if start else []
    notes += [f"{left:,} more: --limit {there} shows them; or name one by id or words"] if left else []
    return Group(table, *notes)
