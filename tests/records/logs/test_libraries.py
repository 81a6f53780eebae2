"""Remarks of libraries do not hide what a user looks for."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rhymed.records.logs import entries, library_of, logs, printed_by
from rhymed.start.cli import main

OUT = """\
Triton is installed, but doesn't include CPU backend. Disabling Triton.
/env/site-packages/vllm/triton_utils/dispatcher.py:138: FutureWarning: `reduce_op` is deprecated
  if hasattr(value, "__dict__"):
[W1123 06:10:58.887793201 utils.cpp:68] Warning: NUMA binding: Using MEMBIND policy
(EngineCore_0 pid=12) WARNING 11-23 06:10:09 [importing.py:44] Triton is not installed
/home/me/reward.py:3: UserWarning: an odd answer
  warnings.warn("an odd answer")
terminate called without an active exception
Fatal Python error: Segmentation fault
"""
LINES = (
    ("vllm.config.vllm", "warning", "may cause the engine to crash"),
    ("vllm.v1.engine.async_llm", "error", "AsyncLLM output_handler failed."),
    ("bitsandbytes.backends.cpu.ops", "warning", "Failed to load"),
    ("my_reward", "warning", "no number in the answer"),
    ("rhymed_workers.reward.worker", "warning", "scorer raised KeyError"),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "rollout-0.out").write_text(OUT)
    os.utime(folder / "rollout-0.out", 2 * (datetime(2026, 11, 23, 6, 10, 7, tzinfo=UTC).timestamp(),))
    rows = [
        {
            "t": f"2026-11-23T06:10:0{second}.000Z",
            "level": level,
            "process": "rollout-0",
            "logger": name,
            "text": text,
        }
        for second, (name, level, text) in enumerate(LINES)
    ]
    (folder / "rollout-0.log").write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    assert main(["logs", *arguments]) == 0
    out, err = capsys.readouterr()
    return out.splitlines(), err


def test_warnings_of_libraries_are_left_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = shown(capsys, str(run), "--level", "warning")
    text = "\n".join(lines)
    for kept in ("output_handler failed", "no number in the answer", "scorer raised KeyError", "an odd answer",
                 "terminate called", "Segmentation fault"):  # fmt: skip
        assert kept in text
    assert err == ""
    assert len(lines) == 1 + 7  # with the day


def test_they_are_shown_on_request_and_to_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything, err = shown(capsys, str(run), "--level", "warning", "--libraries")
    assert (len(everything), err) == (1 + 14, "")
    rows, err = shown(capsys, str(run), "--level", "warning", "--json")
    assert (len(rows), err) == (14, "")


def test_only_known_libraries_are_libraries() -> None:
    assert library_of("vllm.v1.core") == library_of("vllm") == "vllm"
    assert library_of("py.warnings") == "py.warnings"
    assert library_of("rhymed_workers.rollout") == library_of("my_reward") == library_of("") == library_of("py") == ""
    assert [printed_by(line) for line in OUT.splitlines()] == ["triton", "vllm", "", "torch", "vllm", "", "", "", ""]


def test_a_continued_line_belongs_to_the_library_of_the_first(run: Path) -> None:
    (log,) = [log for log in logs(run / "logs") if log.foreign]
    found = {entry.text.strip(): entry.library for entry in entries(log)}
    assert found['if hasattr(value, "__dict__"):'] == "vllm"
    assert found['warnings.warn("an odd answer")'] == ""
