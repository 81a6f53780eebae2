"""The dashboard as a process of its own: what its pages get when the broker ends, and when it dies."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.show.dashboard.rows import queues


@pytest.mark.parametrize("ends", [True, False])
def test_a_page_hears_of_the_end_and_not_of_a_death(run: Path, ends: bool) -> None:
    command = [sys.executable, "-m", "rhymed.show.dashboard", str(run), "127.0.0.1:0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, bufsize=0) as process:  # type: ignore[call-overload]
        url = process.stdout.readline().decode().strip()
        with ThreadPoolExecutor() as pool:
            first = pool.submit(news, url)
            assert process.stdout.readline() == b"?\n"
            body = msgspec.msgpack.encode(queues())
            process.stdin.write(len(body).to_bytes(4, "big") + body)
            assert not first.result()["over"]
        process.terminate() if ends else process.stdin.close()
        heard = False
        with contextlib.suppress(OSError):
            while not heard:
                heard = news(url)["over"]
                time.sleep(0.05)
        assert process.wait(60) == 0
    assert heard == ends


def news(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}api/news", timeout=60) as answer:
        return dict(json.load(answer))
