"""Extracts the answer from a response and the reference answer from a row. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

from rhymed.core.errors import RowUnsuitable
from rhymed.inputs.rows import Row

Kind = Literal["full", "tag", "last_number", "boxed"]

TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|(?<![\w.])[-+]?\.\d+"
)
BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{)?")
REFERENCE_COLUMNS = ("ground_truth", "answer", "solution", "target", "label")
TARGET = "target"
"""Key of a reference that is an object, as Search-R1's: its right answers."""
WIDE = str.maketrans("０１２３４５６７８９．，－＋＄", "0123456789.,-+$")
"""Digits and signs of full width, as Chinese and Japanese texts have them."""
CURRENCY = "$€£¥ "
LONGEST_NUMBER = 400  # characters; a longer one is compared as text
FINAL = "####"
"""In GSM8K a reference is the reasoning, this mark, and the number."""


def extract(text: str, kind: Kind) -> str:
    """The last answer in the response, stripped; empty when there is none. `full` gives the text untouched."""
    if kind == "full":
        return text
    if kind == "tag":
        tags = TAG.findall(text)
        return tags[-1].strip() if tags else ""
    if kind == "boxed":
        return _boxed(text)
    return last_number(text)


def last_number(text: str) -> str:
    """The last decimal number, without thousands separators, e.g. `-1234.5`."""
    numbers = NUMBER.findall(text.translate(WIDE))
    return numbers[-1].replace(",", "").replace("\u2212", "-").removeprefix("+") if numbers else ""


def _boxed(text: str) -> str:
    r"""Contents of the last complete `\boxed{...}`; `\boxed 5` takes one word."""
    for match in reversed(list(BOX.finditer(text))):
        if match.group(1) is None:
            word = text[match.end() :].split(maxsplit=1)
            if word and text[match.end() - 1].isspace():
                return word[0].strip("$.,")
            continue
        end = _closing(text, match.end())
        if end is not None:
            return text[match.end() : end].strip()
    return ""


def _closing(text: str, start: int) -> int | None:
    """Position at which the brace open at `start` closes; None when the response ends first."""
    depth, at = 1, start
    while at < len(text):
        if text[at] == "\\":
            at += 2  # an escaped brace is a character
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
        at += 1
    return None


def reference(row: Row, column: str = "") -> Any:
    """The row's reference answer: verl's `reward_model.ground_truth`, or the first of REFERENCE_COLUMNS."""
    if column:
        if column not in row:
            raise RowUnsuitable(f"the row has no column {column!r} (args.column); columns: {', '.join(row)}")
        return row[column]
    if (found := first_of(row, REFERENCE_COLUMNS)) is not None:
        return found
    raise RowUnsuitable(
        f"the row has no reference answer: none of reward_model.ground_truth, {', '.join(REFERENCE_COLUMNS)};"
        f" columns: {', '.join(row)}. Name it with the scorer's args.column"
    )


def first_of(row: Row, columns: Sequence[str]) -> Any:
    """What verl has prepared, or the first of these columns that is not empty; None: there is none."""
    found = (_prepared(row), *(row.get(name) for name in columns))
    return next((value for value in found if value is not None), None)


def _prepared(row: Row) -> Any:
    model = row.get("reward_model")
    return model.get("ground_truth") if isinstance(model, dict) else None


def references(row: Row, column: str = "") -> list[str]:
    """The reference as text, or those of a list, of which any is right; of GSM8K's only the part after `####`. Raises
    `RowUnsuitable` if it is empty."""
    value = reference(row, column)
    if isinstance(value, dict) and TARGET in value:
        value = value[TARGET]
    values = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str | int | float) for one in values):
        kinds = ", ".join(sorted({type(one).__name__ for one in values if not isinstance(one, str | int | float)}))
        raise RowUnsuitable(f"the row's reference answer must be text or a number, or a list of them, not {kinds}")
    texts = [str(one).rpartition(FINAL)[2].strip() for one in values]
    if not texts or not all(texts):
        raise RowUnsuitable("the row's reference answer is empty")
    return texts


def reference_text(row: Row, column: str = "") -> str:
    """The first of the references."""
    return references(row, column)[0]


def number(text: str) -> Decimal | None:
    """The number that the text is, e.g. `$1,234.50`, `5.0` or `1e3`; None: it is none."""
    text = text.translate(WIDE).replace("\u2212", "-").strip()
    bare = text.removeprefix("-").lstrip(CURRENCY)
    text = f"-{bare}" if text.startswith("-") else bare
    if len(text) > LONGEST_NUMBER or not NUMBER.fullmatch(text):
        return None
    return Decimal(text.replace(",", ""))


def equal(answer: str, reference: str) -> bool:
    """Whether two answers are equal: by value if both are numbers, else as text."""
    values = number(answer), number(reference)
    return values[0] == values[1] if None not in values else normal(answer) == normal(reference)


def ground_truth(row: Row) -> Any:
    """For verl's functions: of GSM8K's text the number after `####`, without commas, as verl prepares it."""
    value = reference(row)
    raw = isinstance(value, str) and FINAL in value and _prepared(row) is None
    return normal(reference_text(row)) if raw else value


def normal(text: str) -> str:
    """For comparison: single blanks, none at the ends; numbers without thousands separators."""
    text = " ".join(text.split())
    return last_number(text) if NUMBER.fullmatch(text) else text
