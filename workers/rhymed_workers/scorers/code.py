"""The scorer `code`: runs the Python program in a response against the tests of its row.

A program that is wrong, crashes, loops, prints without end or attacks its sandbox fails its tests and gets reward 0;
that is no error. A row without readable tests is an error, and so is a sandbox that does not start.

Results are compared here, outside the sandbox (rhymed_workers.sandbox.choose), so the program never sees the expected
ones. Only tests that are themselves code (`assert`) run next to the program, which can manipulate them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rhymed.errors import RewardError
from rhymed.inputs.rows import Row
from rhymed_workers.sandbox import choose
from rhymed_workers.scorers.cases import Case, cases
from rhymed_workers.scorers.setting import Setting

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
        self.note = f"scorer {setting.scorer.label}: {self._sandbox.description}"
        self.warning = ""
        if (kind, self._sandbox.kind) == ("auto", "rlimits"):
            self.warning = (
                f"scorer {setting.scorer.label}: programs of the model can use the network and the files of this"
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
        with tempfile.TemporaryDirectory(prefix="rhymed-code-", ignore_cleanup_errors=True) as folder:
            process = self._sandbox.start(folder)
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
