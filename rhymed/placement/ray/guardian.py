"""`python -m rhymed.placement.ray.guardian`: runs one process of a run on a machine of a Ray cluster.

Started by a keeper, an actor of Ray, through which it gets its order (`Order`, a line of JSON) and further words
(`terminate`, `kill`) on standard input; it answers `Event`s, a line each. When the input ends, the keeper is gone:

* If Ray's head can be reached, Ray knows of the loss, and the process will be started in another place: end it here.
* If not, Ray itself is gone, and the run continues: the process is kept alive, and started again if it fails, until
  Ray's head is back, the process ends without an error, or the run's broker, too, was silent for long.

The same holds while the keeper is there and Ray's head is not: nobody hears the keeper.

It is a grandchild of the keeper in a session of its own, because Ray kills the children of actors that end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

FOLDER = "{folder}"  # in arguments and environment: of `Order.files`
LOOK_S = 0.5
ASK_S = 2.0  # between looks at Ray's head, once it or the keeper is gone
CALM_ASK_S = 10.0
AWAY = 3  # looks in a row without an answer
CONNECT_S = 2.0
SILENT_S = 600.0  # without an answer of the broker either, the run is over
STOP_S = 12.0
LONGEST_PAUSE_S = 30.0
HOPELESS = 2  # exit status
TAIL_BYTES = 64 << 10


class Order(msgspec.Struct, frozen=True):
    argv: list[str]
    environment: dict[str, str]  # all of it
    files: dict[str, str]  # name -> content, in a folder that only this user can read
    output: str
    head: str  # host:port of Ray's head
    broker: str  # host:port of the run's broker
    needs: str = ""  # a file that must be on this machine


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status`: of the process that has ended; None: it has started."""

    pid: int = 0
    status: int | None = None
    words: str = ""
    error: str = ""  # why it could not be started


@dataclass
class Guardian:
    order: Order
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    orphaned: bool = False
    asked: bool = False  # to end its process
    over: bool = False  # its process is needed no more
    misses: int = 0  # looks in a row at which Ray's head did not answer
    look_at: float = 0.0  # when to look again
    output_start: int = 0
    heard: float = field(default_factory=time.monotonic)  # when the head or the broker last answered

    def run(self) -> None:
        pause_s = LOOK_S
        while self._again(event := self._once()):
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        say(event)

    def _again(self, event: Event) -> bool:
        """It failed, and without Ray's head, which its keeper may outlive, nobody else would start it."""
        if event.status in (0, HOPELESS) or self.asked or self.over:
            return False
        return (self.orphaned or not answers(self.order.head)) and not self._is_over()

    def _once(self) -> Event:
        """One process from start to end, and how it ended."""
        try:
            self._start()
        except OSError as error:
            return Event(error=str(error))
        assert self.process is not None
        say(Event(pid=self.process.pid))
        while self.process.poll() is None:
            if self.orphaned:
                time.sleep(LOOK_S)
            else:
                self._words()
            if self._is_over():
                self._stop()
        self._kill()
        return Event(status=self.process.returncode, words=self._last_words())

    def _start(self) -> None:
        if self.order.needs and not Path(self.order.needs).exists():
            raise OSError(
                f"{self.order.needs} is not on {socket.gethostname()}: the run's folder has to be on a file system"
                " that all nodes share (run.folder)"
            )
        output = Path(self.order.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        place = str(self.folder)
        own = {"RHYMED_SUPERVISED": str(output.parent), "RHYMED_SUPERVISOR": str(os.getpid())}
        environment = {name: value.replace(FOLDER, place) for name, value in self.order.environment.items()}
        with output.open("ab") as stream:
            self.output_start = stream.tell()
            self.process = subprocess.Popen(
                [part.replace(FOLDER, place) for part in self.order.argv],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=environment | own,
            )

    def _words(self) -> None:
        """What the keeper asks for. An end of the input makes us an orphan."""
        if not select.select([0], [], [], LOOK_S)[0]:
            return
        words = os.read(0, 4096).decode()
        if not words:
            self.orphaned, self.look_at = True, 0.0
        elif "kill" in words:
            self.asked = True
            self._kill()
        elif "terminate" in words and self.process is not None:
            self.asked = True
            self.process.terminate()

    def _is_over(self) -> bool:
        """Its process is not needed any more: Ray knows that its keeper is gone; Ray was away and is back, and places
        all processes once more; or nobody has answered for long."""
        if self.over or time.monotonic() < self.look_at:
            return self.over
        here = answers(self.order.head)
        self.over = here and (self.orphaned or self.misses >= AWAY)
        self.misses = 0 if here else self.misses + 1
        if here or answers(self.order.broker):
            self.heard = time.monotonic()
        self.over = self.over or time.monotonic() - self.heard > SILENT_S
        self.look_at = time.monotonic() + (ASK_S if self.orphaned or self.misses else CALM_ASK_S)
        return self.over

    def _stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self._kill()
        self.process.wait()

    def _kill(self) -> None:
        """With all that it started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        from rhymed.service.children import last_lines

        with contextlib.suppress(OSError):
            lines = last_lines(Path(self.order.output), start=self.output_start, most_bytes=TAIL_BYTES)
            return lines[-1].removeprefix("rhymed: ") if lines else ""
        return ""


def say(event: Event) -> None:
    with contextlib.suppress(OSError):  # the keeper is gone
        os.write(1, msgspec.json.encode(event) + b"\n")


def answers(address: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
        return True
    return False


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(content)


def main() -> None:
    if os.fork():  # the keeper waits for this process only
        os._exit(0)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the process would inherit
    with os.fdopen(os.dup(0), "rb", buffering=0) as unbuffered:  # `select` sees what comes later
        order = msgspec.json.decode(unbuffered.readline(), type=Order)
    try:
        with tempfile.TemporaryDirectory(prefix="rhymed-seat-", ignore_cleanup_errors=True) as folder:
            write_files(Path(folder), order.files)
            Guardian(order, Path(folder)).run()
    except OSError as error:  # the disk of temporary files is full, or not writable
        say(Event(error=f"{socket.gethostname()}: {error}"))


if __name__ == "__main__":
    main()
