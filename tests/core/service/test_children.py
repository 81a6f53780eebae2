from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from rhymed.core.service.children import (
    exit_reason,
    kill_session,
    last_lines,
    last_words,
    restart_pause_s,
    terminate,
    wait_or_kill,
)

STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


def test_the_pause_doubles_up_to_its_limit() -> None:
    assert [restart_pause_s(failures, 0.5, 3.0) for failures in (0, 1, 2, 3, 4, 10_000)] == [0.5, 0.5, 1, 2, 3, 3]


def test_the_last_lines_are_those_of_the_newest_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"earlier\n")
    start = log.stat().st_size
    assert last_lines(log, start=start) == []
    log.write_bytes(b"earlier\none\n\n  two \xff\n")
    assert last_lines(log, start=start) == ["one", "two \ufffd"]
    assert last_lines(log, most_bytes=6) == ["two \ufffd"]
    assert (exit_reason(3), exit_reason(-9)) == ("status 3", "signal SIGKILL")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["one", "two"], "two"),
        (["rhymed: StoreError: no", "room"], "StoreError: no room"),
        (
            ["Fatal Python error: no memory", "", "Thread 0x1:", "Extension modules: lmdb"],
            "Fatal Python error: no memory",
        ),
    ],
)
def test_the_last_words_are_the_reason(lines: list[str], words: str) -> None:
    assert last_words(lines) == words


@pytest.mark.parametrize("session", [False, True])
async def test_a_process_that_ignores_sigterm_is_killed(session: bool) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUBBORN, stdin=pipe, stdout=pipe, start_new_session=session
    )
    assert process.stdout is not None
    await process.stdout.readline()
    terminate(process)
    await wait_or_kill(process, 0.1, session=session)
    assert process.returncode == -9
    terminate(process)
    if session:
        kill_session(process)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
