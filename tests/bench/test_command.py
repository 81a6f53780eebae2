"""`rhymed bench`: which benchmarks there are, and that the processes of one end with it."""

from __future__ import annotations

import importlib
import inspect
import signal
import subprocess
import sys

import pytest

from rhymed.cli import main
from rhymed.cli.bench import BENCHMARKS, MOVED

ENDLESS = """
import sys, time, types

def run(quick):
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        print("tidied", flush=True)

sys.modules["rhymed.bench.store"] = types.SimpleNamespace(run=run)
from rhymed.cli import main
main(["bench", "store"])
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


@pytest.mark.parametrize("name", ["chaos", "watch", "fuzz"])
def test_what_is_no_benchmark_any_more_names_its_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", name, "--quick"])
    assert ended.value.code == 2
    assert f"`rhymed bench {name}` is `python -m {MOVED[name]}` now, in a checkout" in capsys.readouterr().err


def test_every_benchmark_takes_its_options() -> None:
    for name, benchmark in BENCHMARKS.items():
        run = importlib.import_module(benchmark.module).run
        assert {"quick", *benchmark.options} == set(inspect.signature(run).parameters), name


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("peers --epochs 2 --cost x --task quickstart", "rhymed bench peers has no --cost, --epochs (see"),
        ("store --part tests", "rhymed bench store has no --part (see"),
        ("spec --epochs one", "'one': whole numbers with commas between them are needed"),
        ("spec --temperatures 1,warm", "'1,warm': numbers with commas between them are needed"),
    ],
)
def test_options_of_other_benchmarks_and_no_numbers_are_mistakes(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["bench", *words.split()])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert why in capsys.readouterr().err
