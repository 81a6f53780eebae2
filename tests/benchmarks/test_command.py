"""`python -m benchmarks`: which benchmarks there are, and that the processes of one end with it."""

from __future__ import annotations

import importlib
import inspect
import signal
import subprocess
import sys

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from rhymed.start.cli import main as rhymed

ENDLESS = """
import sys, time, types

def run(quick):
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        print("tidied", flush=True)

sys.modules["benchmarks.store"] = types.SimpleNamespace(run=run)
from benchmarks.__main__ import main
main(["store"])
"""


def test_asked_to_end_it_tidies_as_after_ctrl_c() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as bench:
        try:
            assert bench.stdout is not None
            assert bench.stdout.readline() == "begun\n"
            bench.send_signal(signal.SIGTERM)
            said, _ = bench.communicate(timeout=60)
        finally:
            bench.kill()
    assert said == "tidied\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("store --quick", "invalid choice: 'store'"),
        ("--quick store", "invalid choice: 'store'"),
        ("spec --epochs one", "'one': whole numbers"),
        ("--quick spec --methods fastest", "fastest"),
    ],
)
def test_the_package_has_one_benchmark(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = rhymed(["bench", *words.split()])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert why in capsys.readouterr().err


def test_every_benchmark_takes_its_options() -> None:
    for name, benchmark in BENCHMARKS.items():
        run = importlib.import_module(benchmark.module).run
        assert {"quick", *benchmark.options} == set(inspect.signature(run).parameters), name


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("peers --epochs 2 --cost x --task quickstart", "peers has no --cost, --epochs (see"),
        ("store --parts tests", "store has no --parts (see"),
        ("spec --epochs one", "'one': whole numbers with commas between them are needed"),
        ("spec --temperatures 1,warm", "'1,warm': numbers with commas between them are needed"),
    ],
)
def test_options_of_other_benchmarks_and_no_numbers_are_mistakes(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(words.split())
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert why in capsys.readouterr().err
