"""An engine's process ends with the process that started it, by plain processes in the places of both."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

OWNER = """
import os, subprocess, sys
os.environ["RHYMED_ENGINE_OWNER"] = str(os.getpid())
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True)
"""
BETWEEN = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
ENGINE = """
import time
from rhymed_workers.engines.extension import end_with_owner
end_with_owner()
print("open", flush=True)
time.sleep(300)
"""


def test_an_engine_and_who_started_it_end_with_their_killed_owner() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, BETWEEN, ENGINE], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        below = psutil.Process(owner.pid).children(recursive=True)
        assert len(below) == 2
        owner.kill()
        deadline = time.monotonic() + 60
        while any(one.is_running() and one.status() != "zombie" for one in below):
            assert time.monotonic() < deadline, "a process outlived its owner"
            time.sleep(0.02)
        owner.stdout.read()


def test_an_engine_whose_owner_is_gone_does_not_start() -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    environment = os.environ | {"RHYMED_ENGINE_OWNER": gone.stdout.strip()}
    ended = subprocess.run([sys.executable, "-c", ENGINE], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "which started this engine, is gone" in ended.stderr
