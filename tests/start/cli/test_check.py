"""`rhymed check` and the first seconds of `rhymed run`, as a person sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.check.report import Report, Section
from rhymed.start.cli import main
from rhymed.start.cli.check import render


@pytest.fixture
def file(tmp_path: Path, tiny_model: Path) -> Path:
    (tmp_path / "reward.py").write_text("def reward(completions, **c): return [float(len(t)) for t in completions]\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(4)))
    config = tmp_path / "mine.toml"
    config.write_text(f"""
[run]
name = "mine"
folder = "{tmp_path}/runs"
[model]
path = "{tiny_model}"
[data]
path = "{tmp_path}/rows.jsonl"
[rollout]
engine = "trace"
prompts_per_step = 2
group_size = 2
max_prompt_length = 32
max_response_length = 8
[reward]
scorer = "{tmp_path}/reward.py:reward"
""")
    return config


def rhymed(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rhymed", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=os.environ | {"COLUMNS": "80"} | environment
    )


def test_a_fine_configuration_ends_with_status_0_in_plain_text(file: Path) -> None:
    done = rhymed("check", file)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.rstrip().endswith("ready to run")
    assert "\x1b" not in done.stdout
    assert done.stdout.isascii()
    names = (str(file.parent), "ipc://")
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if not any(name in line for name in names))
    assert not (file.parent / "runs").exists()


def test_a_bad_one_ends_with_status_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file), "-o", "net.broker=tcp://0.0.0.0:5555"]) == 2
    said = capsys.readouterr().out
    assert "must be changed (1)" in said
    assert said.rstrip().endswith("not ready: see above")


def test_a_run_that_cannot_work_is_refused_before_it_leaves_anything(file: Path) -> None:
    done = rhymed("run", file, "-o", "data.path=rows.jsnl", "-o", f"reward.scorer={file.parent}/reward.py:rewrd")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert all(line.startswith("rhymed: ") for line in lines), done.stderr
    assert "rows.jsnl" in done.stderr
    assert "no function 'rewrd'; it has: reward" in done.stderr
    assert not (file.parent / "runs").exists()


def test_a_reader_that_has_seen_enough_gets_no_traceback(file: Path) -> None:
    command = f"{sys.executable} -m rhymed check {file} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("rhymed check")
    assert done.stderr == ""


def test_long_texts_are_wrapped_below_their_label() -> None:
    section = Section("batch", [("passes", "word " * 30), ("a_long_column_name", "first\n  second\n\nthird")])
    report = Report([section], errors=["net.broker: " + "x" * 10])
    lines = [line for _, line in render(report, "title", 60)]
    assert lines[2:6] == [
        "batch",
        "  passes       word word word word word word word word word",
        "               word word word word word word word word word",
        "               word word word word word word word word word",
    ]
    assert lines[7:12] == [
        "  a_long_column_name",
        "               first",
        "                 second",
        "",
        "               third",
    ]
    assert lines[13:15] == ["must be changed (1)", "  * net.broker: xxxxxxxxxx"]
