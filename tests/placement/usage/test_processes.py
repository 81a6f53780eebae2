"""CPU time and memory of real processes and their descendants."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from rhymed.placement.usage import ProcessTree
from tests.broker.status.test_dashboard import until

SPIN = "import time\nwhile time.process_time() < {seconds}: pass\n"
CHILD = """
import subprocess, sys
held = bytearray(200 << 20)
held[::4096] = b"x" * len(held[::4096])
subprocess.run([sys.executable, "-c", sys.argv[1]])
print("ran", flush=True)
sys.stdin.read()
"""


def test_a_childs_memory_and_the_time_of_a_grandchild_that_ended() -> None:
    now = 0.0
    tree = ProcessTree(clock=lambda: now)
    before = tree.read()
    command = [sys.executable, "-c", CHILD, SPIN.format(seconds=0.5)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ran\n"
        now = 10.0
        with_child = tree.read()
        assert with_child.cpu * 10 > 0.5, "of the grandchild, which has ended"
        assert with_child.processes == before.processes + 1
        assert with_child.memory - before.memory > 190 << 20
        child.communicate()
    now = 20.0
    after = tree.read()
    assert after.processes == before.processes
    assert 0 <= after.cpu * 10 < with_child.cpu * 10 + 5, "time that was counted already does not count again"


def test_the_first_reading_is_the_mean_since_the_process_started() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=60)]) as child:
        try:
            process = psutil.Process(child.pid)
            until(lambda: process.cpu_times().user > 0.2)
            assert 0 < ProcessTree(child.pid).read().cpu < 1.5
        finally:
            child.kill()


def test_memory_that_is_shared_or_part_of_a_file_does_not_count() -> None:
    import mmap

    before = ProcessTree().read().memory
    with open("/dev/shm/" + f"rhymed-test-usage-{os.getpid()}", "w+b") as file:
        os.unlink(file.name)
        file.truncate(64 << 20)
        with mmap.mmap(file.fileno(), 64 << 20) as mapped:
            for start in range(0, 64 << 20, 4096):
                mapped[start] = 1
            assert ProcessTree().read().memory - before < 32 << 20
