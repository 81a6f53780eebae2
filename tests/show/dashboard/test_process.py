"""The dashboard as a process of its own: what its pages get when the broker ends, and when it dies."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest

from tests.show.dashboard.rows import queues


@pytest.mark.parametrize("ends", [True, False])
def test_the_end_is_sent_and_a_death_is_not(run: Path, ends: bool) -> None:
    command = [sys.executable, "-m", "rhymed.show.dashboard", str(run), "127.0.0.1:0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, bufsize=0) as process:  # type: ignore[call-overload]
        url = process.stdout.readline().decode().strip()
        with urllib.request.urlopen(f"{url}events?after=3", timeout=60) as page:
            assert process.stdout.readline() == b"?\n"
            body = msgspec.msgpack.encode(queues())
            process.stdin.write(len(body).to_bytes(4, "big") + body)
            while not page.readline().startswith(b"event: steps"):
                pass
            process.terminate() if ends else process.stdin.close()
            text = page.read().decode()
        assert process.wait(60) == 0
    assert re.findall(r"^event: end\ndata: .*\"state\":\"(\w+)\"", text, re.MULTILINE) == ["finished"] * ends
