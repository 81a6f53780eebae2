"""`python -m rhymed.placement.ray.guardian`: runs one process of a run on a machine of a Ray cluster.

Started by a keeper, an actor of Ray, through which it gets its order (`Order`, a line of JSON) and further words
(`terminate`, `kill`) on standard input; it answers `Event`s, a line each. When the input ends, the keeper is gone:

* If Ray's head can be reached, Ray knows of the loss, and the process will be started in another place: end it here.
* If not, Ray itself is gone, and the run continues: the process is kept alive, and started again if it fails, until
  Ray's head is back, the process ends without an error, or the run's broker, too, was silent for long.

It is a grandchild of the keeper in a session of its own, because Ray kills the children of actors that end.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
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
ASK_S = 2.0  # between looks at Ray's head, once the keeper is gone
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
    over: bool = False  # an orphan's process is needed no more
    output_start: int = 0
    heard: float = field(default_factory=time.monotonic)  # when the broker last answered

    def run(self) -> None:
        pause_s = LOOK_S
        while True:
            status = self._once()
            if not self.orphaned or status in (0, HOPELESS) or self._is_over():
                return
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _once(self) -> int:
        """One process from start to end; returns its status."""
        try:
            self._start()
        except OSError as error:
            self._say(Event(error=str(error)))
            return 1
        assert self.process is not None
        self._say(Event(pid=self.process.pid))
        while self.process.poll() is None:
            if self.orphaned:
                time.sleep(ASK_S)
                if self._is_over():
                    self._stop()
            elif self._words() and self.orphaned and self._is_over():
                self._stop()
        self._kill()
        self._say(Event(status=self.process.returncode, words=self._last_words()))
        return self.process.returncode

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

    def _words(self) -> bool:
        """What the keeper asks for; whether there was anything. An end of the input makes us an orphan."""
        if not select.select([0], [], [], LOOK_S)[0]:
            return False
        words = os.read(0, 4096).decode()
        if not words:
            self.orphaned, self.heard = True, time.monotonic()
        elif "kill" in words:
            self._kill()
        elif "terminate" in words and self.process is not None:
            self.process.terminate()
        return True

    def _is_over(self) -> bool:
        """An orphan's process is not needed any more."""
        if self.over or answers(self.order.head):
            self.over = True  # even if Ray is lost again now
            return True
        if answers(self.order.broker):
            self.heard = time.monotonic()
        return time.monotonic() - self.heard > SILENT_S

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

    def _say(self, event: Event) -> None:
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
    folder = Path(tempfile.mkdtemp(prefix="rhymed-seat-"))
    try:
        write_files(folder, order.files)
        Guardian(order, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
