"""Processes that lose their reader or terminal continue, and log that."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

OUTPUT = """
import logging, sys
logging.basicConfig(filename=sys.argv[1])
from rhymed.core.service.stdio import ignore_output_errors
with ignore_output_errors():
    print("first", flush=True)
    sys.stdin.readline()
    for number in range(10_000):
        print("not read", number)
    print("nor", flush=True)
    print("this", file=sys.stderr, flush=True)
open(sys.argv[2], "w").write("done")
"""

HANGUP = """
import asyncio, logging, sys
logging.basicConfig(filename=sys.argv[1])
from rhymed.core.service.stdio import ignore_output_errors, survive_hangup

async def work():
    survive_hangup()
    print("first", flush=True)
    while not open(sys.argv[1]).read():
        await asyncio.sleep(0.02)
    print("not read", flush=True)
    open(sys.argv[2], "w").write("done")

with ignore_output_errors():
    asyncio.run(work())
"""


def test_a_reader_that_goes_ends_nothing(tmp_path: Path) -> None:
    log, done = tmp_path / "log", tmp_path / "done"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", OUTPUT, str(log), str(done)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "first\n"
        process.stdout.close()
        process.stderr.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(60) == 0
    assert done.read_text() == "done"
    assert log.read_text().count("output cannot be written (Broken pipe); continuing without it") == 2, (
        "once for each stream"
    )


def test_a_terminal_that_goes_ends_nothing(tmp_path: Path) -> None:
    """As when a connection drops: the whole session gets SIGHUP."""
    log, done = tmp_path / "log", tmp_path / "done"
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored where the tests run
        os.execv(sys.executable, [sys.executable, "-c", HANGUP, str(log), str(done)])
    try:
        assert b"first" in os.read(terminal, 100)
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    assert status == 0, log.read_text()
    assert done.read_text() == "done"
    assert f"the terminal is gone; continuing without it. To end this process: kill {pid}" in log.read_text()


def test_who_was_asked_to_ignore_it_leaves_it_so() -> None:
    """As under nohup: child processes ignore SIGHUP, too."""
    text = (
        "import asyncio, signal\nfrom rhymed.core.service.stdio import survive_hangup\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "async def work(): survive_hangup()\nasyncio.run(work())\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", text], timeout=60, check=True)


def test_a_full_disk_under_the_output_ends_nothing_either(tmp_path: Path) -> None:
    log, done = tmp_path / "log", tmp_path / "done"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", OUTPUT, str(log), str(done)]
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=full, timeout=60).returncode
    assert done.read_text() == "done", status
    assert "No space left on device" in log.read_text()


def test_a_console_that_is_full_and_logs_there_too_ends_nothing(tmp_path: Path) -> None:
    """The log is written to the same stream."""
    log, done = tmp_path / "log", tmp_path / "done"
    both = OUTPUT.replace("filename=sys.argv[1])", "handlers=[logging.FileHandler(sys.argv[1])])").replace(
        "with ignore_output_errors():",
        "with ignore_output_errors():\n    logging.getLogger().addHandler(logging.StreamHandler())",
    )
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", both, str(log), str(done)]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=full, timeout=60)
    assert done.read_text() == "done"
    assert log.read_text().count("No space left on device") <= 3


def test_a_process_without_output_works(tmp_path: Path) -> None:
    log, done = tmp_path / "log", tmp_path / "done"
    shell = f'exec "{sys.executable}" -c "$TEXT" {log} {done} >&- 2>&-'
    subprocess.run(
        ["sh", "-c", shell], env={**os.environ, "TEXT": OUTPUT}, stdin=subprocess.DEVNULL, timeout=60, check=True
    )
    assert done.read_text() == "done"
