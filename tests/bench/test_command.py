"""`rhymed bench` as a process: what it started goes with it."""

from __future__ import annotations

import signal
import subprocess
import sys

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
