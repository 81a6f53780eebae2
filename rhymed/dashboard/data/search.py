"""Searches the texts of responses, a part of the store at a time. Blocking.

Responses are stored as tokens, so each is decoded to be searched. One call takes about `BUDGET_S`, and says where the
next one continues; the caller decides how far it goes.
"""

from __future__ import annotations

import re
import time
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


def search(folder: RunFolder, ids: Sequence[str], words: str, start: int = 0) -> dict[str, Any]:
    """Responses of the prompts `ids` from number `start` on whose text has these consecutive words, whatever their
    case. `next`: number of the prompt to continue with; None: all were searched."""
    decode = folder.decode
    if decode is None or not words.split():
        return {"found": [], "searched": 0, "next": None, "missing": folder.missing}
    pattern = re.compile(r"\s+".join(map(re.escape, words.split())), re.IGNORECASE)
    until, searched = time.monotonic() + BUDGET_S, 0
    found: list[dict[str, Any]] = []
    for number in range(start, len(ids)):
        if number > start and (time.monotonic() > until or len(found) >= MOST_FOUND):
            return {"found": found, "searched": searched, "next": number, "missing": ""}
        try:
            responses = folder.browse.responses(ids[number])
        except StoreDamaged:
            continue  # its own page says so
        epochs = epochs_of(response.info.id.step for response in responses)
        responses.reverse()
        for first in range(0, len(responses), TOGETHER):
            part = responses[first : first + TOGETHER]
            texts = decode([response.tokens for response in part])
            searched += len(part)
            for response, text in zip(part, texts, strict=True):
                if (snippet := around(text, pattern)) is not None:
                    found.append(_row(response, epochs[response.info.id.step], snippet))
    return {"found": found, "searched": searched, "next": None, "missing": ""}


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
