"""The process between an actor of Ray and a process of a run: as real processes, without Ray."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhymed.placement.ray import guardian
from rhymed.placement.ray.guardian import Guardian, Order

GUARDIAN = (sys.executable, "-m", "rhymed.placement.ray.guardian")
TEXT = """
import os, sys, time
seconds, status, started = float(os.environ["SECONDS"]), int(os.environ["STATUS"]), os.environ["STARTED"]
open(started, "a").write(f"{os.getpid()} {os.getppid()} {os.environ['KEYS']}\\n")
print("rhymed: last words", flush=True)
time.sleep(seconds)
sys.exit(status)
"""


class Kept:
    def __init__(self, folder: Path, *, seconds: float, status: int = 0, head: str, **more: Any) -> None:
        (folder / "rhymed").mkdir()
        (folder / "rhymed" / "__main__.py").write_text(TEXT)
        self.started = folder / "started"
        asked = {"SECONDS": str(seconds), "STATUS": str(status), "STARTED": str(self.started)}
        order = {
            "arguments": [],
            "environment": {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "KEYS": "{folder}/keys", **asked},
            "files": {"keys/rollout.secret": "a secret"},
            "output": str(folder / "logs" / "rollout-0.out"),
            "broker": "127.0.0.1:9",
        } | more
        command = [*GUARDIAN, "rollout-0", str(os.getpid()), head, "127.0.0.1", "127.0.0.1"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.say(json.dumps(order))

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        return heard

    def leave(self) -> None:
        """As an actor that has died."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(60)  # it has left a child of its own

    def starts(self) -> list[str]:
        return self.started.read_text().splitlines() if self.started.exists() else []

    def pid(self) -> int:
        until(lambda: bool(self.starts()))
        return int(self.starts()[-1].split()[0])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def head() -> Iterator[str]:
    """Something that answers as Ray's head does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def no_head() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_its_end_is_reported_and_its_secret_is_readable_by_its_owner_alone(tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=600, head=head)
    pid = kept.pid()
    secret = Path(kept.starts()[0].split()[2]) / "rollout.secret"
    assert secret.read_text() == "a secret"
    assert secret.stat().st_mode & 0o77 == 0
    assert kept.process.wait(60) == 0, "it is no child of the actor, which may be killed with its children"
    kept.say("terminate")
    ended = kept.hear()
    assert ended["status"] == -15
    assert ended["words"] == "last words"
    assert not alive(pid)
    until(lambda: not secret.exists())
    kept.leave()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("word", ["terminate", "kill"])
def test_what_is_not_wanted_any_more_while_it_is_started_ends(word: str, tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=600, head=head)
    kept.say(word)
    assert kept.hear()["status"] < 0
    assert not any(alive(int(line.split()[0])) for line in kept.starts())
    kept.leave()


def test_when_its_actor_is_lost_but_not_ray_it_ends_what_it_started(tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=600, head=head)
    pid = kept.pid()
    kept.leave()
    until(lambda: not alive(pid))


def test_when_ray_is_lost_the_process_continues_and_starts_again_if_it_fails(tmp_path: Path, no_head: str) -> None:
    kept = Kept(tmp_path, seconds=0.2, status=1, head=no_head)
    assert kept.pid()
    kept.leave()
    until(lambda: len(kept.starts()) >= 2)
    host, _, port = no_head.rpartition(":")
    with socket.create_server((host, int(port))):  # Ray is back: it starts the process in a place of its own
        until(lambda: not alive(int(kept.starts()[-1].split()[0])))
        until(lambda: not alive(int(kept.starts()[-1].split()[1])))


def test_without_rays_head_it_starts_what_fails_again_though_its_actor_lives(tmp_path: Path, no_head: str) -> None:
    kept = Kept(tmp_path, seconds=0.2, status=1, head=no_head)
    until(lambda: len(kept.starts()) >= 2)
    host, _, port = no_head.rpartition(":")
    with socket.create_server((host, int(port))):  # Ray hears of it again
        assert kept.hear()["status"] == 1
    kept.leave()


async def test_when_ray_was_away_and_is_back_it_ends_what_ray_places_again(monkeypatch) -> None:
    async def answered(address: str) -> bool:
        return here[0]

    monkeypatch.setattr(guardian, "answers", answered)
    watching = Guardian(Order([], {}, {}, "", "broker"), "head", asyncio.StreamReader())
    here = [True]
    for here[0], over in [(True, False), (False, False), (False, False), (True, False)] + 3 * [(False, False)]:
        assert await watching.is_over(orphaned=False) == over
    here[0] = True
    assert await watching.is_over(orphaned=False)


def test_a_file_that_cannot_be_written_there_is_a_sentence_and_no_lost_place(tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=1, head=head, files={"keys": "", "keys/rollout.secret": "a secret"})
    assert f"{socket.gethostname()}: [Errno" in kept.hear()["words"]
    kept.leave()


def test_a_process_that_is_not_wanted_before_its_order_comes_is_not_started(head: str) -> None:
    command = [*GUARDIAN, "rollout-0", str(os.getpid()), head, "127.0.0.1", "127.0.0.1"]
    done = subprocess.run(command, input=b"kill\n", stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout)["status"] == -signal.SIGTERM


def test_a_folder_that_is_not_shared_is_a_sentence(tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=1, head=head, needs=str(tmp_path / "config.json"))
    assert "the run's folder has to be on a file system that all nodes share" in kept.hear()["words"]
    kept.leave()
