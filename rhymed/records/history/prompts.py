"""`rhymed history show` without a prompt: a store's prompts, those with the least reward first.

A prompt is held out if its samples are of evaluations alone; these come after the prompts that are trained on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rhymed.core.printable import visible
from rhymed.core.steps import is_evaluation
from rhymed.core.style import plain_table
from rhymed.core.text import number
from rhymed.inputs.rows import prompt_text
from rhymed.records.history.catalog import Catalog, Sort
from rhymed_store.browse import Browse
from rhymed_store.columns import epochs_of, is_trained

if TYPE_CHECKING:
    from rich.console import RenderableType

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
