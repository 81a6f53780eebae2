"""The shell around the screen: a terminal without a terminal, a broker's socket, and the command itself in a pty."""

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

from benchmarks.actors import Rollout, Trainer
from rhymed.core import messages
from rhymed.core.errors import ConfigError, SteeringError
from rhymed.core.wire.sockets import DONE, Client, Server
from rhymed.show.top import poller
from rhymed.show.top.app import Top
from rhymed.show.top.state import UiState
from tests.broker.cluster import Cluster, until
from tests.show.top.sample_run import group, rollout, snapshot
from tests.stress.terminal import watching


class FakeBroker:
    """A broker's socket that tells one snapshot, and notes what it is told."""

    def __init__(self, address: str) -> None:
        self.queues = snapshot()
        self.reported: list[Any] = []
        self.asked: list[messages.GetQueues] = []
        self.answering = 0  # now
        self.most = 0  # at once
        self.slow_s = 0.0
        self.closed = False  # the steps of groups that are asked for
        self.server = Server(address, messages.ToBroker, self._handle)

    async def _handle(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        if isinstance(message, messages.GetQueues):
            self.asked.append(message)
            self.answering += 1
            self.most = max(self.most, self.answering)
            await asyncio.sleep(self.slow_s)
            self.answering -= 1
            return self.queues
        if isinstance(message, messages.GetGroup):
            if self.closed:
                return messages.Group(step=message.step, prompt=message.prompt, members=[])
            return msgspec.structs.replace(group(), step=message.step, prompt=message.prompt)
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


@contextlib.asynccontextmanager
async def shown(address: str, size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Any, Top]]:
    client = Client(address, peer="broker")
    app = Top(client, UiState(), every_s=0.05)
    try:
        async with app.run_test(size=size) as pilot:
            yield pilot, app
    finally:
        client.close()


def screen(app: Top) -> str:
    """What the terminal shows, not what was meant to be shown."""
    height = app.screen_widget.size.height
    return "\n".join(app.screen_widget.render_line(line).text for line in range(height))


async def seen(app: Top, text: str) -> None:
    await until(lambda: text in screen(app), f"{text!r} on\n{screen(app)}")


async def test_the_screen_follows_the_newest_snapshot(broker: FakeBroker) -> None:
    async with shown(broker.server.address) as (_, app):
        await seen(app, "● live")
        assert "rollout-3" in screen(app)
        assert {question.brief for question in broker.asked} == {True}
        broker.queues = msgspec.structs.replace(broker.queues, step=77, workers=[rollout(5)])
        await seen(app, "step 77/96")
        assert "rollout-3" not in screen(app)


async def test_a_slow_broker_has_one_question_at_a_time(broker: FakeBroker) -> None:
    broker.slow_s = 0.3
    async with shown(broker.server.address) as (_, app):
        await until(lambda: len(broker.asked) >= 4, "some questions")
        app.poller.ask_now()
        app.poller.ask_now()
        await seen(app, "● live")
        assert broker.most == 1


async def test_pausing_wants_a_yes_and_is_seen_at_once(broker: FakeBroker) -> None:
    async with shown(broker.server.address) as (pilot, app):
        await seen(app, "● live")
        await pilot.press("p")
        await seen(app, "Pause the run?")
        await pilot.press("n")
        await seen(app, "nothing was done")
        await pilot.press("p", "y")
        await seen(app, "‖ PAUSED")
        await seen(app, "paused: workers finish what they hold")
        assert broker.reported == [messages.Pause(paused=True)]


async def test_draining_and_what_the_broker_refuses(broker: FakeBroker) -> None:
    async with shown(broker.server.address) as (pilot, app):
        await seen(app, "● live")
        await pilot.press("down", "down", "d", "y")
        await until(lambda: broker.reported == [messages.Drain(worker="rollout-1", drained=True)], "the order")
        await pilot.press("end", "up", "d", "y")
        await seen(app, "not done: no worker is called 'rollout-8'")


async def test_looking_into_a_worker_and_a_sample(broker: FakeBroker) -> None:
    async with shown(broker.server.address) as (pilot, app):
        await seen(app, "● live")
        await pilot.press("down", "enter")
        await seen(app, "rollout on node-0, pid 100")
        await until(lambda: broker.asked[-1].worker == "rollout-0", "its samples asked for")
        await pilot.press("enter")
        await seen(app, "250 tokens expected per sample")
        await seen(app, "history of response 1")
        await pilot.press("escape", "escape", "g")
        await seen(app, "groups of open steps")


async def test_a_group_is_kept_in_sight_when_its_step_is_done(broker: FakeBroker) -> None:
    async with shown(broker.server.address) as (pilot, app):
        await seen(app, "● live")
        await pilot.press("down", "enter")
        await until(lambda: broker.asked[-1].worker == "rollout-0", "its samples asked for")
        await pilot.press("enter")
        await seen(app, "history of response 1")
        assert "the step is done" not in screen(app)
        broker.closed = True
        await seen(app, "the step is done")
        await seen(app, "history of response 1")
        await seen(app, f"rhymed logs --sample 12/{2:016x}/0")
        broker.closed = False
        await until(lambda: "the step is done" not in screen(app), "a step that is open again")
        broker.closed = True
        await pilot.press("escape", "down", "enter")
        await seen(app, "the step is no longer open")


async def test_a_line_of_one_colour_is_shown_in_it(broker: FakeBroker) -> None:
    broker.queues = msgspec.structs.replace(broker.queues, troubles=["no reward worker is here"])
    async with shown(broker.server.address) as (_, app):
        await seen(app, "waiting: no reward worker is here")
        found = (app.screen_widget.render_line(line) for line in range(app.screen_widget.size.height))
        (trouble,) = (line for line in found if line.text.startswith("waiting:"))
        assert [str(part.style) for part in trouble if part.text.strip()] == ["bold red"]


async def test_the_mouse_selects_and_opens(broker: FakeBroker) -> None:
    async with shown(broker.server.address) as (pilot, app):
        await seen(app, "● live")
        line = app.screen_widget.frame.names.index("rollout-2")
        await pilot.click(app.screen_widget, offset=(5, line))
        await until(lambda: app.ui.selected.get("workers") == "rollout-2", "the line selected")
        line = app.screen_widget.frame.names.index("rollout-2")
        await pilot.click(app.screen_widget, offset=(5, line))
        await seen(app, "rollout on node-0, pid 102")


async def test_every_size_of_a_terminal_is_filled(broker: FakeBroker) -> None:
    async with shown(broker.server.address) as (pilot, app):
        await seen(app, "● live")
        for width, height in ((200, 60), (10, 24), (1, 1), (33, 5), (120, 40)):
            await pilot.resize_terminal(width, height)
            await until(lambda width=width, height=height: app.screen_widget.size == (width, height), "the size")
            await until(lambda: len(app.screen_widget.frame.lines) == app.screen_widget.size.height, "the lines")
            assert {app.screen_widget.render_line(line).cell_length for line in range(height)} == {width}
        assert "rollout-3" in app.export_screenshot()


async def test_a_broker_that_starts_again_and_one_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "DEADLINE_S", 0.3)
    monkeypatch.setattr(poller, "IDLE_POLL_S", 0.05)
    address = f"ipc://{tmp_path}/broker"
    first = FakeBroker(address)
    async with shown(address) as (pilot, app):
        await seen(app, "● live")
        first.server.close()
        if not (tmp_path / "broker").exists():
            (tmp_path / "broker").touch()  # as when it was killed
        await seen(app, "○ no answer for")
        assert "rollout-3" in screen(app), "the last picture"
        await pilot.press("p")
        await seen(app, "no order can be sent")
        second = FakeBroker(address)
        await seen(app, "● live")
        second.server.close()
        (tmp_path / "broker").unlink(missing_ok=True)
        await seen(app, "■ ended")
        assert "rollout-3" in screen(app)
        third = FakeBroker(address)
        third.queues = msgspec.structs.replace(third.queues, finished=True)
        await seen(app, "✓ finished")
        third.server.close()


async def test_a_real_broker_is_paused_and_a_worker_drained(cluster: Cluster) -> None:
    worker = await cluster.actor(Rollout, "rollout-0", work_s=1000, slots=4)
    assert isinstance(worker, Rollout)
    await cluster.actor(Trainer, "trainer")
    async with shown(cluster.where.broker, (120, 40)) as (pilot, app):
        await until(lambda: len(worker.holding) == 4, "work")
        await seen(app, "4/4")
        await pilot.press("p", "y")
        await seen(app, "‖ PAUSED")
        assert cluster.broker.ledger.control.paused
        await pilot.press("down", "d", "y")
        await until(lambda: not worker.holding, "everything handed over")
        await seen(app, "DRAINED")
        await pilot.press("p", "y", "enter", "d", "y")
        await until(lambda: len(worker.holding) == 4, "work again")
        await pilot.press("q")


# -- the command -----------------------------------------------------------------------------------------------------


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
    coloured = Terminal("--broker", broker.server.address, "--every", "0.1")
    plain = Terminal("--broker", broker.server.address, NO_COLOR="1")
    await coloured.read_until(lambda written: b"rollout-3" in written)
    os.write(coloured.fd, b"q")
    assert await coloured.status() == 0
    assert b"\x1b[36m" in coloured.written
    assert b"\x1b[?1049l" in coloured.written, "the other screen is left"
    await plain.read_until(lambda written: b"rollout-3" in written)
    plain.process.send_signal(signal.SIGTERM)
    assert await plain.status() == 0
    assert b"\x1b[36m" not in plain.written
    assert b"\x1b[?1049l" in plain.written


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


def call(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "rhymed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_without_a_terminal_it_says_what_to_use_instead() -> None:
    done = call("top")
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a terminal; `rhymed queues --json --watch` is for pipes" in done.stderr


async def test_nobody_there_leaves_the_terminal_alone(tmp_path: Path) -> None:
    terminal = Terminal("--broker", f"ipc://{tmp_path}/none")
    assert await terminal.status() == 2
    assert b"no run is alive at ipc://" in terminal.written
    assert b"\x1b[?1049h" not in terminal.written


def test_without_textual_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['textual'] = None\n"
        "class Tty:\n"
        "    def __getattr__(self, name): return getattr(sys.__stderr__, name)\n"
        "    def isatty(self): return True\n"
        "sys.stdin = sys.stdout = sys.stderr = Tty()\n"
        "import os; os.environ['TERM'] = 'xterm'\n"
        "from rhymed.start.cli import main; raise SystemExit(main(['top']))"
    )
    done = call(code=code)
    assert done.returncode == 2
    assert "needs the package textual: pip install 'rhymed[top]'" in done.stderr


@pytest.mark.parametrize("every", ["0", "-1", "nan", "x", "1e9"])
def test_a_strange_pace_is_refused(every: str) -> None:
    from rhymed.start.cli import main

    with pytest.raises(SystemExit) as caught:
        main(["top", "--every", every])
    assert caught.value.code == 2


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
        (["pause", "rollout-1"], "is for the whole run; `rhymed steer drain rollout-1`"),
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
