"""Searches the texts of responses, a part of the store at a time. Blocking.

Responses are stored as tokens, so each is decoded to be searched. One call takes about `BUDGET_S` and returns the
prompt with which the next call continues. The caller decides how many calls it makes. The store may grow between two
calls: because the search continues at an id, it leaves out and repeats no prompt that was there when it began.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from rhymed.errors import StoreDamaged
from rhymed.history.folder import RunFolder
from rhymed_store.inspect.browse import Response
from rhymed_store.inspect.epochs import epochs_of

BUDGET_S = 0.5
MOST_FOUND = 100  # in one answer
AROUND = 60  # characters before and after what was found
TOGETHER = 64  # responses decoded at a time


def search(folder: RunFolder, ids: Sequence[str], words: str, start: str = "") -> dict[str, Any]:
    """Responses whose text has these consecutive words, in any case. `ids`: of all prompts, in order; `start`: the id
    to begin at. `next`: the id to continue with, None after the last; `before`: number of prompts before it."""
    decode = folder.decode
    if decode is None or not words.split():
        return {"found": [], "searched": 0, "next": None, "before": 0, "missing": folder.missing}
    pattern = re.compile(r"\s+".join(map(re.escape, words.split())), re.IGNORECASE)
    until, searched = time.monotonic() + BUDGET_S, 0
    found: list[dict[str, Any]] = []
    first_number = bisect_left(ids, start)
    for number in range(first_number, len(ids)):
        if number > first_number and (time.monotonic() > until or len(found) >= MOST_FOUND):
            return {"found": found, "searched": searched, "next": ids[number], "before": number, "missing": ""}
        try:
            responses = folder.browse.responses(ids[number])
        except StoreDamaged:
            continue  # the prompt's own page names the damage
        epochs = epochs_of(response.info.id.step for response in responses)
        responses.reverse()
        for first in range(0, len(responses), TOGETHER):
            part = responses[first : first + TOGETHER]
            texts = decode([response.tokens for response in part])
            searched += len(part)
            for response, text in zip(part, texts, strict=True):
                if (snippet := around(text, pattern)) is not None:
                    found.append(_row(response, epochs[response.info.id.step], snippet))
    return {"found": found, "searched": searched, "next": None, "before": len(ids), "missing": ""}


def around(text: str, pattern: re.Pattern[str]) -> list[str] | None:
    """The text before the first match, the match, and the text after it. None: no match."""
    found = pattern.search(text)
    if found is None:
        return None
    start, end = found.span()
    return [text[max(0, start - AROUND) : start], text[start:end], text[end : end + AROUND]]


def _row(response: Response, epoch: int, snippet: list[str]) -> dict[str, Any]:
    info = response.info
    return {
        "id": str(info.id),
        "prompt": info.id.prompt,
        "step": info.id.step,
        "index": info.id.index,
        "epoch": epoch,
        "reward": info.reward,
        "length": info.length,
        "text": snippet,
    }
