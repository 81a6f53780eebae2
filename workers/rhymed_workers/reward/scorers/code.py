"""The scorer `code`: runs the Python program in a response against the tests of its row.

A program that is wrong, crashes, loops, prints without end or attacks its sandbox fails its tests and gets reward 0;
that is no error. A row without readable tests is an error, and so is a sandbox that does not start.

Results are compared here, outside the sandbox (rhymed_workers.sandbox.choose), so the program never sees the expected
ones. Only tests that are themselves code (`assert`) run next to the program, which can manipulate them.

`Code` is the scorer, and `Case` a test.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from rhymed.core import private
from rhymed.core.errors import RewardError, RowUnsuitable
from rhymed.inputs.rows import Row
from rhymed_workers.reward.scorers.answer import first_of
from rhymed_workers.reward.scorers.setting import Setting
from rhymed_workers.sandbox import choose

FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
PYTHON = ("python", "python3", "py", "")
TIMEOUT_S = 5.0
MARGIN_S = 2.0  # of reward.timeout_s, for the sandbox to start and end
START_S = 20.0
LINE_BYTES = 8 << 20  # of a report: output in JSON


def program(text: str) -> str:
    """The last block fenced as Python, or as nothing; without a fence the whole text."""
    blocks = [body for language, body in FENCE.findall(text) if language.lower() in PYTHON]
    return blocks[-1] if blocks else "" if FENCE.search(text) else text


class Code:
    """`note`: which sandbox is used. `warning`: what is open because bubblewrap does not work; mostly empty."""

    def __init__(self, setting: Setting) -> None:
        setting.allow_only("timeout_s", "memory_mib", "partial", "tests", "sandbox")
        args, reward = setting.scorer.args, setting.reward
        self._column = str(args.get("tests", ""))
        self._partial = args.get("partial", False)
        if not isinstance(self._partial, bool):
            raise RewardError(f"{setting.key}.args.partial = {self._partial!r} must be true or false")
        self._memory = int(_positive(setting, "memory_mib", 512) * (1 << 20))
        self._total_s = max(reward.timeout_s - MARGIN_S, reward.timeout_s / 2)
        self._timeout_s = _positive(setting, "timeout_s", min(TIMEOUT_S, self._total_s))
        if self._timeout_s > self._total_s:
            raise RewardError(
                f"{setting.key}.args.timeout_s = {self._timeout_s:g} is for one test, and reward.timeout_s ="
                f" {reward.timeout_s:g} must hold all of a sample: set reward.timeout_s to the time of all its tests"
                f" and {MARGIN_S:g} s"
            )
        kind = str(args.get("sandbox", "auto"))
        self._sandbox = _sandbox(setting, kind)
        self.note = f"scorer {setting.label}: {self._sandbox.description}"
        self.warning = ""
        if (kind, self._sandbox.kind) == ("auto", "rlimits"):
            self.warning = (
                f"scorer {setting.label}: programs of the model can use the network and the files of this"
                f" machine, because no bubblewrap works here: {choose.advice()}"
            )

    def __call__(self, answer: str, row: Row, tokens: Sequence[int]) -> float:
        tests = cases(row, self._column)
        source = program(answer)
        if not source.strip():
            return 0.0
        passed = sum(self._passes(source, tests))
        return passed / len(tests) if self._partial else float(passed == len(tests))

    def _passes(self, source: str, tests: Sequence[Case]) -> Iterator[bool]:
        """Whether each test passes; where all must pass, ends after the first failure."""
        deadline = time.monotonic() + self._total_s
        token = secrets.token_hex(16)  # result of a test that is code, so that leaving early is no success
        with self._running(source, [{**case.test, "token": token} for case in tests]) as reports:
            for case in tests:
                report = reports.next(deadline)
                right = report.get("how") == "ok" and case.right(str(report.get("text")), token)
                yield right
                if not report or not (right or self._partial):
                    return

    @contextmanager
    def _running(self, source: str, tests: list[dict[str, Any]]) -> Iterator[Reports]:
        """The driver's reports, once it is ready. Afterwards nothing of it is left."""
        with private.TemporaryFolder("rhymed-code") as folder:
            process = self._sandbox.start(str(folder))
            try:
                _send(process, choose.job(source, tests, self._timeout_s, self._memory))
                reports = Reports(process)
                if not reports.next(time.monotonic() + START_S).get("ready"):
                    raise RewardError(f"sandbox {self._sandbox.kind} did not start: {_complaint(process)}")
                yield reports
            finally:
                process.kill()
                process.communicate()


class Reports:
    """The driver's lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None, "it is a pipe"
        self._pipe = process.stdout.fileno()
        self._text = b""

    def next(self, deadline: float) -> dict[str, Any]:
        """The next report; empty when the driver is dead or late, or its line is no report."""
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            if left <= 0 or len(self._text) > LINE_BYTES or not select.select([self._pipe], [], [], left)[0]:
                return {}
            more = os.read(self._pipe, 1 << 16)
            if not more:
                return {}
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        try:
            report = json.loads(line)
        except ValueError:
            return {}
        return report if isinstance(report, dict) else {}


def _positive(setting: Setting, name: str, default: float) -> float:
    value = setting.scorer.args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise RewardError(f"{setting.key}.args.{name} = {value!r} must be a positive number")
    return value


def _sandbox(setting: Setting, kind: str) -> choose.Sandbox:
    if kind not in ("auto", *choose.KINDS):
        known = ", ".join(("auto", *choose.KINDS))
        raise RewardError(f"{setting.key}.args.sandbox = {kind!r}: it is one of {known}")
    if (sandbox := choose.choose(kind)) is None:
        hint = f": {choose.advice()}, or" if kind == "bubblewrap" else ":"
        raise RewardError(f"{setting.key}.args.sandbox = {kind!r} does not work here{hint} set it to 'auto'")
    return sandbox


def _send(process: subprocess.Popen[bytes], body: bytes) -> None:
    assert process.stdin is not None, "it is a pipe"
    with suppress(BrokenPipeError):  # it did not start, which `Reports.next` notices
        process.stdin.write(body)
        process.stdin.close()
    process.stdin = None


def _complaint(process: subprocess.Popen[bytes]) -> str:
    process.kill()
    _, output = process.communicate()
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


# The tests of a program, from a dataset's row. Pure.
#
# Three kinds, as in public datasets: standard input and expected output (`inputs`, `outputs`), a function's arguments
# and result (the same with `fn_name`), and Python that raises when the program is wrong (`test`, `test_list`).

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
    if (found := first_of(row, COLUMNS)) is not None:
        return found
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
        with suppress(ValueError):
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
