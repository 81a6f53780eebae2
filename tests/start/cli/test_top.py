"""`rhymed top` in a pseudo-terminal, and `rhymed steer`, of a broker's socket."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rhymed.core import messages
from rhymed.core.errors import ConfigError, SteeringError
from rhymed.core.wire.sockets import DONE, Server
from tests.broker.cluster import until
from tests.show.top.sample_run import snapshot
from tests.stress.terminal import watching


class FakeBroker:
    """A broker's socket that tells one snapshot, and notes what it is told."""

    def __init__(self, address: str) -> None:
        self.queues = snapshot()
        self.reported: list[Any] = []
        self.asked: list[messages.GetQueues] = []
        self.server = Server(address, messages.ToBroker, self._handle)

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        if isinstance(message, messages.GetQueues):
            self.asked.append(message)
            return self.queues
        self.reported.append(message)
        if isinstance(message, messages.Pause):
            self.queues = msgspec.structs.replace(self.queues, paused=message.paused)
        elif message.worker == "rollout-8":
            raise SteeringError("no worker is called 'rollout-8'")
        return DONE


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[FakeBroker]:
    made = FakeBroker(f"ipc://{tmp_path}/broker")
    yield made
    made.server.close()


class Terminal:
    """`rhymed top` in a pseudo terminal."""

    def __init__(self, *arguments: str, size: tuple[int, int] = (80, 24), **environment: str) -> None:
        self.fd, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rhymed", "top", *arguments],
            stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", **environment},
        )  # fmt: skip
        os.close(inside)
        self.written = b""

    async def read_until(self, true: Callable[[bytes], object]) -> None:
        async with asyncio.timeout(60):
            while not true(self.written):
                self._read()
                await asyncio.sleep(0.01)

    async def status(self) -> int:
        async with asyncio.timeout(60):
            while self.process.poll() is None:
                self._read()
                await asyncio.sleep(0.01)
        self._read()
        os.close(self.fd)
        return int(self.process.returncode)

    def _read(self) -> None:
        while select.select([self.fd], [], [], 0)[0]:
            try:
                self.written += os.read(self.fd, 1 << 16)
            except OSError:  # it has ended
                return


async def test_the_command_draws_and_gives_the_terminal_back(broker: FakeBroker) -> None:
    coloured = Terminal("--broker", broker.server.address)
    plain = Terminal("--broker", broker.server.address, NO_COLOR="1")
    await coloured.read_until(lambda written: b"rollout-3" in written)
    broker.queues = msgspec.structs.replace(broker.queues, step=77)
    await coloured.read_until(lambda written: b"step 77/96" in written)
    os.write(coloured.fd, b"q")
    assert await coloured.status() == 0
    assert b"\x1b[36m" in coloured.written
    assert b"\x1b[?1049l" in coloured.written, "the other screen is left"
    await plain.read_until(lambda written: b"rollout-3" in written)
    plain.process.send_signal(signal.SIGTERM)
    assert await plain.status() == 0
    assert b"\x1b[36m" not in plain.written
    assert b"\x1b[?1049l" in plain.written


async def test_a_broker_that_starts_again_and_one_that_ends(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/broker"
    first = FakeBroker(address)
    terminal = Terminal("--broker", address)
    await terminal.read_until(lambda written: "● live".encode() in written)
    assert {question.brief for question in first.asked[1:]} <= {True}
    first.server.close()
    (tmp_path / "broker").touch()  # as when it was killed
    await terminal.read_until(lambda written: "○ no answer for".encode() in written)
    (tmp_path / "broker").unlink()
    await terminal.read_until(lambda written: "■ ended".encode() in written)
    second = FakeBroker(address)
    second.queues = msgspec.structs.replace(second.queues, finished=True)
    await terminal.read_until(lambda written: "✓ finished".encode() in written)
    second.server.close()
    terminal.process.send_signal(signal.SIGINT)
    assert await terminal.status() == 0


async def test_what_it_costs_is_measured_on_a_real_terminal_that_is_read(broker: FakeBroker, tmp_path: Path) -> None:
    async with watching(broker.server.address) as (terminal, process):
        await until(lambda: broker.asked, "a question")
        drawn = terminal.drawn
        broker.queues = msgspec.structs.replace(broker.queues, step=77)
        await until(lambda: terminal.drawn > drawn, "another picture")
        assert process.cmdline()[3] == "top"
    assert not process.is_running()
    with pytest.raises(ConfigError, match=r"`rhymed top` has ended: .*no run is alive at"):
        async with watching(f"ipc://{tmp_path}/none"):
            pass


def test_without_a_terminal_it_says_what_to_use_instead() -> None:
    command = [sys.executable, "-m", "rhymed", "top"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a terminal; `rhymed queues` is for pipes" in done.stderr


async def test_nobody_there_leaves_the_terminal_alone(tmp_path: Path) -> None:
    terminal = Terminal("--broker", f"ipc://{tmp_path}/none")
    assert await terminal.status() == 2
    assert b"no run is alive at ipc://" in terminal.written
    assert b"\x1b[?1049h" not in terminal.written


# -- rhymed steer ----------------------------------------------------------------------------------------------------


async def steer(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "rhymed", "steer", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return int(process.returncode or 0), out.decode(), err.decode()


async def test_a_script_steers(broker: FakeBroker) -> None:
    options = ("--broker", broker.server.address)
    assert await steer("pause", *options) == (
        0,
        "paused: workers finish what they hold, nothing new is started\n",
        "",
    )
    status, out, err = await steer("drain", "rollout-1", "rollout-8", *options)
    assert (status, out) == (2, "rollout-1 is drained: it gets no new samples\n")
    assert "no worker is called 'rollout-8'" in err
    assert broker.reported == [
        messages.Pause(paused=True),
        messages.Drain(worker="rollout-1", drained=True),
        messages.Drain(worker="rollout-8", drained=True),
    ]


def test_without_the_operators_key_nobody_steers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rhymed.start.cli import main

    assert main(["keygen", str(tmp_path / "keys")]) == 0
    assert (tmp_path / "keys" / "operator.secret").exists()
    (tmp_path / "keys" / "operator.secret").unlink()
    assert main(["steer", "pause", "--broker", "tcp://127.0.0.1:9", "--keys", str(tmp_path / "keys")]) == 2
    assert "steering needs the run's operator.secret" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["drain"], "needs the name of a worker"),
        (["pause", "rollout-1"], "is for the whole run, which --run names: leave out rollout-1"),
        (["stop"], "invalid choice: 'stop'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from rhymed.start.cli import main

    with contextlib.suppress(SystemExit):
        assert main(["steer", *arguments]) == 2
    assert reported in capsys.readouterr().err
