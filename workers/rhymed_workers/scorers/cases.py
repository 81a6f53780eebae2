"""The tests of a program, from a dataset's row. Pure.

Three kinds, as in public datasets: standard input and expected output (`inputs`, `outputs`), a function's arguments
and result (the same with `fn_name`), and Python that raises when the program is wrong (`test`, `test_list`).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from rhymed.errors import RowUnsuitable
from rhymed.inputs.rows import Row

COLUMNS = ("test_list", "test", "tests", "input_output", "ground_truth", "answer")
SHAPE = (
    'it must be {"inputs": [...], "outputs": [...]}, with "fn_name" for a function, or Python: a text or a list of'
    " assert statements"
)


@dataclass(frozen=True)
class Case:
    """`test` goes to the driver; `right(result, token)` checks the driver's result."""

    test: dict[str, Any]
    right: Callable[[str, str], bool]


def cases(row: Row, column: str = "") -> list[Case]:
    """At least one. Raises `RowUnsuitable` when the row has no readable test."""
    value = _value(row, column)
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowUnsuitable(f"the row's tests are no JSON: {error}") from None
    if isinstance(value, dict) and "inputs" in value:
        tests = _pairs(value["inputs"], value.get("outputs"), value.get("fn_name"))
    elif isinstance(value, dict) and "assert_case" in value:
        tests = _asserts(value["assert_case"], row)
    elif isinstance(value, list) and value and all(isinstance(test, dict) for test in value):
        tests = _listed(value)
    else:
        tests = _asserts(value, row)
    if not tests:
        raise RowUnsuitable(f"the row has no tests; {SHAPE}")
    return tests


def _value(row: Row, column: str) -> Any:
    if column:
        if column not in row:
            raise RowUnsuitable(f"the row has no column {column!r} (args.tests); columns: {', '.join(row)}")
        return row[column]
    model = row.get("reward_model")
    if isinstance(model, dict) and model.get("ground_truth") is not None:
        return model["ground_truth"]
    for name in COLUMNS:
        if row.get(name) is not None:
            return row[name]
    raise RowUnsuitable(
        f"the row has no tests: none of reward_model.ground_truth, {', '.join(COLUMNS)}; columns: {', '.join(row)}."
        " Name it with the scorer's args.tests"
    )


def _pairs(inputs: Any, outputs: Any, name: Any) -> list[Case]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise RowUnsuitable(f"the row's tests need as many outputs as inputs; {SHAPE}")
    if name is None:
        return [_printed(_text(stdin), _text(output)) for stdin, output in zip(inputs, outputs, strict=True)]
    return [_called(str(name), _arguments(given), result) for given, result in zip(inputs, outputs, strict=True)]


def _listed(tests: Sequence[dict[str, Any]]) -> list[Case]:
    """LiveCodeBench: one object per test."""
    for test in tests:
        if "input" not in test or "output" not in test:
            raise RowUnsuitable(f"the row's tests are objects without input and output; {SHAPE}")
    names = [test.get("fn_name") for test in tests]
    return [
        _printed(_text(test["input"]), _text(test["output"]))
        if name is None
        else _called(str(name), _arguments(test["input"]), test["output"])
        for test, name in zip(tests, names, strict=True)
    ]


def _printed(stdin: str, expected: str) -> Case:
    return Case({"stdin": stdin}, lambda text, _: same_text(text, expected))


def _called(name: str, arguments: list[Any], expected: Any) -> Case:
    """APPS wraps results in a list of one, LiveCodeBench writes them as JSON."""
    accepted = [expected]
    if isinstance(expected, list) and len(expected) == 1:
        accepted.append(expected[0])
    if isinstance(expected, str):
        with contextlib.suppress(ValueError):
            accepted.append(json.loads(expected))

    def right(text: str, token: str) -> bool:
        try:
            result = json.loads(text)
        except ValueError:
            return False
        return any(same_value(result, value) for value in accepted)

    return Case({"call": name, "arguments": arguments}, right)


def _asserts(value: Any, row: Row) -> list[Case]:
    """MBPP: a list with its set-up. HumanEval: a text with its entry point."""
    tests = [value] if isinstance(value, str) else value
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise RowUnsuitable(f"the row's tests cannot be read; {SHAPE}")
    imports = row.get("test_imports")
    before = [str(row.get("test_setup_code") or ""), *(map(str, imports) if isinstance(imports, list) else ())]
    entry = row.get("entry_point")
    asserted = []
    for test in tests:
        after = [f"check({entry})"] if entry and "def check(" in test else []
        asserted.append(Case({"code": "\n".join([*before, test, *after])}, lambda text, token: text == token))
    return asserted


def _text(value: Any) -> str:
    """Some rows have a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(given: Any) -> list[Any]:
    """A list, or LiveCodeBench's text with one JSON value per line."""
    if isinstance(given, list):
        return given
    try:
        return [json.loads(line) for line in str(given).splitlines() if line.strip()]
    except ValueError as error:
        raise RowUnsuitable(f"the row's test has arguments that are no JSON: {error}") from None


def same_text(actual: str, expected: str) -> bool:
    """Line by line, without blanks at the ends; numbers by their value."""
    ours, theirs = actual.rstrip().splitlines(), expected.rstrip().splitlines()
    return len(ours) == len(theirs) and all(_same_line(*both) for both in zip(ours, theirs, strict=True))


def _same_line(actual: str, expected: str) -> bool:
    if actual.strip() == expected.strip():
        return True
    ours, theirs = actual.split(), expected.split()
    try:
        return len(ours) == len(theirs) and all(Decimal(a) == Decimal(b) for a, b in zip(ours, theirs, strict=True))
    except InvalidOperation:
        return False


def same_value(actual: Any, expected: Any) -> bool:
    """Compares JSON values; floats may differ by a relative 1e-6."""
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(same_value(*both) for both in zip(actual, expected, strict=True))
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(same_value(actual[key], expected[key]) for key in actual)
    if isinstance(actual, float) or isinstance(expected, float):
        numbers = isinstance(actual, int | float) and isinstance(expected, int | float)
        return numbers and math.isclose(actual, expected, rel_tol=1e-6, abs_tol=1e-9)
    return type(actual) is type(expected) and bool(actual == expected)
