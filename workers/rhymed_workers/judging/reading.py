"""Reads a judge's answer as a reward. An answer that has no score raises `Unreadable` in words; none becomes 0.

Pure. Answers are foreign text: what is searched is bounded, and nothing in it is evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from rhymed.config.parts.judge import Judge
from rhymed.text import short
from rhymed_workers.scorers.answer import NUMBER

READ_CHARS = 1 << 14  # at the end of an answer, in which its score is searched
LINE_CHARS = 1 << 10
OF_MOST = re.compile(r"\s*(?:/|out of)\s*")
WORD = re.compile(r"\w+")


class Unreadable(Exception):
    """Its text is a part of a sentence: `its answer ...`."""


def text_of(judge: Judge, answer: Any) -> str:
    """What decides the score: the end of a judge's text, or a reward model's number."""
    try:
        if judge.api == "chat":
            return _written(answer["choices"][0])
        data = answer["data"][0]
        numbers = {"classify": "probs", "pooling": "data", "score": "score"}[judge.api]
        return _single(data[numbers], judge)
    except (KeyError, TypeError, IndexError, AttributeError):
        raise Unreadable(
            f"its answer is none of {judge.api!r} (api): {short(answer)}; is this the server's path?"
        ) from None


def reward_of(judge: Judge, text: str) -> float:
    """From what `text_of` returned."""
    if judge.api != "chat":
        return _scaled(judge, _finite(text))
    found = READERS[judge.read](judge, text)
    if isinstance(found, float):
        return _scaled(judge, found)
    if judge.words:
        return _by_word(judge, found)
    return _scaled(judge, _one_number(judge, found))


def _written(choice: Any) -> str:
    text, reason = choice["message"].get("content"), choice.get("finish_reason")
    if reason == "length":
        raise Unreadable("its answer was cut at the limit of tokens: raise options.max_tokens, or ask for less")
    if not isinstance(text, str) or not text.strip():
        raise Unreadable(f"its answer is empty (finish_reason: {short(reason)})")
    return text.strip()[-READ_CHARS:]


def _single(value: Any, judge: Judge) -> str:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise Unreadable(
            f"it gave {len(value)} numbers (api = {judge.api!r}), and a reward is one: name another model"
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"it gave {short(value)} in place of a number")
    return repr(_finite(value))


def _last_line(judge: Judge, text: str) -> str:
    return text.splitlines()[-1].strip()[-LINE_CHARS:]


def _last_field(judge: Judge, text: str) -> str | float:
    found = [value[judge.field] for value in _objects(text) if judge.field in value]
    if not found:
        raise Unreadable(f"its answer has no JSON object with the field {judge.field!r}: {short(text[-200:])}")
    value = found[-1]
    if isinstance(value, int | float) and not isinstance(value, bool) and not judge.words:
        return _finite(value)
    return value if isinstance(value, str) else json.dumps(value)


def _last_match(judge: Judge, text: str) -> str:
    matches = list(re.finditer(judge.pattern, text))
    if not matches:
        raise Unreadable(f"its answer does not match pattern: {short(text[-200:])}")
    return str(matches[-1][1 if matches[-1].re.groups else 0] or "")


READERS: dict[str, Callable[[Judge, str], str | float]] = {
    "last_line": _last_line,
    "json": _last_field,
    "regex": _last_match,
}


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Those in the text, one after the other."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)


def _by_word(judge: Judge, text: str) -> float:
    rewards = {name.casefold(): reward for name, reward in judge.words.items()}
    whole = " ".join(text.split()).strip(" .!*_`\"'").casefold()
    if whole in rewards:
        return rewards[whole]
    found = {word for word in WORD.findall(text.casefold()) if word in rewards}
    if len(found) != 1:
        what = "none" if not found else "several"
        raise Unreadable(f"it wrote {what} of the words {', '.join(judge.words)}: {short(text)}")
    return rewards[found.pop()]


def _one_number(judge: Judge, text: str) -> float:
    """`8`, `Score: 8`, and `8/10` where 10 is the most."""
    found = list(NUMBER.finditer(text))
    if len(found) == 2 and judge.bounds and OF_MOST.fullmatch(text[found[0].end() : found[1].start()]):
        found = found[:1] if _number(found[1][0]) == judge.bounds[1] else found
    if len(found) != 1:
        raise Unreadable(f"one number is expected where its score is, and there {_are(len(found))}: {short(text)}")
    return _number(found[0][0])


def _are(count: int) -> str:
    return f"are {count}" if count else "is none"


def _number(text: str) -> float:
    return _finite(text.replace(",", "").replace("\u2212", "-"))


def _finite(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Unreadable(f"it gave {short(value)} in place of a finite number")
    return number


def _scaled(judge: Judge, number: float) -> float:
    if judge.bounds is None:
        return number
    least, most = judge.bounds
    if not least <= number <= most:
        raise Unreadable(f"it gave {number:g}, which is not in range = [{least:g}, {most:g}]")
    return (number - least) / (most - least)
