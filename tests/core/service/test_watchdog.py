"""A process whose event loop hangs ends; one that was only stopped for a while does not."""

import os
import signal
import subprocess
import sys
import time

HANG = """
import asyncio, sys, time
from rhymed.core.service import process
from rhymed.core.service.service import LagMeter

async def main():
    meter = LagMeter()
    task = asyncio.ensure_future(meter.watch())
    process.start(lambda: meter.turns, "patient", check_s=0.2)
    await asyncio.sleep(0.5)
    print("up", flush=True)
    if sys.argv[1] == "hang":
        time.sleep(600)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def start(how: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HANG, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return child


def test_a_loop_that_hangs_is_shown_where_and_ended() -> None:
    child = start("hang")
    _, said = child.communicate(timeout=60)
    assert child.returncode == 75
    assert "rhymed: patient hung for" in said
    assert "time.sleep" in said or "<string>" in said, "the place where it hangs is reported"


def test_a_process_that_was_stopped_is_not_blamed() -> None:
    child = start("turn")
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(6)  # longer than all of its checks
    os.kill(child.pid, signal.SIGCONT)
    time.sleep(1)
    assert child.poll() is None
    child.kill()
    child.communicate()
