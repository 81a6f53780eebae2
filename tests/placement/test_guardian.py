"""The process between an actor of Ray and a process of a run: as real processes, without Ray."""

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

import msgspec
import pytest

from rhymed.placement.ray import guardian
from rhymed.placement.ray.guardian import Guardian, Order
from rhymed.placement.ray.keeper import Keeper
from rhymed.placement.ray.words import Start

TEXT = """
import os, sys, time
open(sys.argv[1], "a").write(f"{os.getpid()} {os.getppid()} {os.environ['KEYS']}\\n")
print("rhymed: last words", flush=True)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


class Kept:
    def __init__(self, folder: Path, *, seconds: float, status: int = 0, head: str, **more: Any) -> None:
        (folder / "process.py").write_text(TEXT)
        self.started, argv = folder / "started", [sys.executable, str(folder / "process.py")]
        order = {
            "argv": [*argv, str(self.started), str(seconds), str(status)],
            "environment": {**os.environ, "KEYS": "{folder}/keys"},
            "files": {"keys/rollout.secret": "a secret"},
            "output": str(folder / "logs" / "rollout-0.out"),
            "head": head,
            "broker": "127.0.0.1:9",
        } | more
        command = [sys.executable, "-m", "rhymed.placement.ray.guardian", "rollout-0", str(os.getpid())]
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
    pid = kept.hear()["pid"]
    until(lambda: bool(kept.starts()))
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


def test_when_its_actor_is_lost_but_not_ray_it_ends_what_it_started(tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=600, head=head)
    pid = kept.hear()["pid"]
    kept.leave()
    until(lambda: not alive(pid))


def test_when_ray_is_lost_the_process_continues_and_starts_again_if_it_fails(tmp_path: Path, no_head: str) -> None:
    kept = Kept(tmp_path, seconds=0.2, status=1, head=no_head)
    assert kept.hear()["pid"]
    kept.leave()
    until(lambda: len(kept.starts()) >= 2)
    host, _, port = no_head.rpartition(":")
    with socket.create_server((host, int(port))):  # Ray is back: it starts the process in a place of its own
        until(lambda: not alive(int(kept.starts()[-1].split()[0])))
        until(lambda: not alive(int(kept.starts()[-1].split()[1])))


def test_without_rays_head_it_starts_what_fails_again_though_its_actor_lives(tmp_path: Path, no_head: str) -> None:
    kept = Kept(tmp_path, seconds=0.2, status=1, head=no_head)
    first, second = kept.hear(), kept.hear()
    assert first["pid"] != second["pid"]
    assert "status" not in second
    host, _, port = no_head.rpartition(":")
    with socket.create_server((host, int(port))):  # Ray hears of it again
        while "status" not in (heard := kept.hear()):
            pass
        assert heard["status"] == 1
    kept.leave()


def test_when_ray_was_away_and_is_back_it_ends_what_ray_places_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(guardian, "answers", lambda address: here[0])
    watching, here = Guardian(Order([], {}, {}, "", "head", "broker"), tmp_path), [True]
    for answered, over in [(True, False), (False, False), (False, False), (True, False)] + 3 * [(False, False)]:
        here[0], watching.look_at = answered, 0.0
        assert watching._is_over() == over
    here[0], watching.look_at = True, 0.0
    assert watching._is_over()


def test_a_file_that_cannot_be_written_there_is_a_sentence_and_no_lost_place(tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=1, head=head, files={"keys": "", "keys/rollout.secret": "a secret"})
    assert f"{socket.gethostname()}: [Errno" in kept.hear()["error"]
    kept.leave()


def test_a_process_that_is_not_wanted_before_it_begins_is_not_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Keeper, "where", lambda self: "127.0.0.1")
    output, keeper = tmp_path / "rollout-0.out", Keeper()
    start = Start(1, "rollout-0", ["--help"], {}, {}, str(output), "127.0.0.1:9")
    keeper.say("kill")
    assert keeper.run(msgspec.json.encode(start), "127.0.0.1:9", "") == (-signal.SIGTERM, "")
    assert not output.exists()


def test_a_folder_that_is_not_shared_is_a_sentence(tmp_path: Path, head: str) -> None:
    kept = Kept(tmp_path, seconds=1, head=head, needs=str(tmp_path / "config.json"))
    assert "the run's folder has to be on a file system that all nodes share" in kept.hear()["error"]
    kept.leave()
