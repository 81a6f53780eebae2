"""`python -m rhymed.placement.ray.guardian NAME KEEPER HEAD HOST RANKS`: one process of a run on a machine of Ray.

Started by a keeper, an actor of Ray (process id KEEPER), through which it gets its order, a line of JSON, and further
words (`terminate`, `kill`) on standard input; it answers how the process ended, in a line. When the input ends, the
keeper is gone:

* If Ray's head can be reached, Ray knows of the loss, and the process will be started in another place: end it here.
* If not, Ray itself is gone, and the run continues: the process is kept alive, and started again if it fails, until
  Ray's head is back, the process ends without an error, or the run's broker, too, was silent for long.

The same holds while the keeper is there and Ray's head is not: nobody hears the keeper.

It is a grandchild of the keeper in a session of its own, because Ray kills the children of actors that end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from rhymed.core import private
from rhymed.core.tasks import watched
from rhymed.placement.local import LocalProcess, LocalStarter
from rhymed.placement.plan import Command

ASK_S = 2.0  # between looks at Ray's head, once it or the keeper is gone
CALM_ASK_S = 10.0
AWAY = 3  # looks in a row without an answer
CONNECT_S = 2.0
SILENT_S = 600.0  # without an answer of the broker either, the run is over
STOP_S = 12.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
HOPELESS = 2  # exit status
LINE_BYTES = 16 << 20
RAYS = ("RAY_", "OMP_NUM_THREADS")  # what Ray sets for its own workers


class Order(msgspec.Struct, frozen=True):
    """In arguments and environment, `{folder}` is that of `files`, `{host}` this machine's address, `{ranks}` that of
    the first machine of the process's gang, and `{port}` a free port."""

    arguments: list[str]  # of `rhymed`
    environment: dict[str, str]
    files: dict[str, str]  # name -> content, in a folder that only this user can read
    output: str
    broker: str  # host:port of the run's broker
    needs: str = ""  # a file that must be on this machine

    def command(self, name: str, values: dict[str, str]) -> Command:
        def filled(text: str) -> str:
            for key, value in values.items():
                text = text.replace(key, value)
            return text

        argv = [sys.executable, "-m", "rhymed", *map(filled, self.arguments)]
        return Command(name, argv, {key: filled(text) for key, text in self.environment.items()})


class Ended(msgspec.Struct, frozen=True):
    status: int
    words: str  # the last of its output, or why it could not be started


class Guardian:
    """`run` returns how the process ended for good."""

    def __init__(self, order: Order, head: str, words: asyncio.StreamReader) -> None:
        self._order, self._head, self._words = order, head, words
        self._process: LocalProcess | None = None
        self._asked = ""  # how it shall end: the keeper asks for that, or Ray starts it elsewhere
        self._misses = 0  # looks in a row at which Ray's head did not answer
        self._heard = time.monotonic()  # when the head or the broker last answered

    async def run(self, command: Command) -> Ended:
        keeper = watched(self._obey())
        watch = watched(self._watch(keeper))
        pause_s = FIRST_PAUSE_S
        while True:
            ended = await self._once(command)
            alone = keeper.done() or not await answers(self._head)  # nobody else would start it again
            if ended.status in (0, HOPELESS) or not alone or self._asked:
                return ended
            await asyncio.wait([watch], timeout=pause_s)
            if self._asked:
                return ended
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _once(self, command: Command) -> Ended:
        if (needs := self._order.needs) and not await asyncio.to_thread(os.path.exists, needs):
            where = f"{needs} is not on {socket.gethostname()}"
            return Ended(1, f"{where}: the run's folder has to be on a file system that all nodes share (run.folder)")
        if self._asked:
            return Ended(-signal.SIGTERM, "")
        try:
            process = self._process = await LocalStarter().start(command, Path(self._order.output))
        except OSError as error:
            return Ended(1, str(error))
        if self._asked:  # while it was started
            self._end(self._asked)
        status = await process.ended()
        self._process = None
        return Ended(status, process.last_words())

    def _end(self, how: str) -> None:
        """`how`: "terminate" or "kill", which stays if it is asked for first."""
        how = self._asked = "kill" if "kill" in (how, self._asked) else how
        if self._process is not None:
            (self._process.kill if how == "kill" else self._process.terminate)()

    async def _obey(self) -> None:
        """What the keeper asks for, until it is gone."""
        while word := await self._words.readline():
            self._end("kill" if b"kill" in word else "terminate")

    async def _watch(self, keeper: asyncio.Task[None]) -> None:
        while not await self.is_over(orphaned=keeper.done()):
            if keeper.done() or self._misses:
                await asyncio.sleep(ASK_S)
            else:
                await asyncio.wait([keeper], timeout=CALM_ASK_S)
        self._end("terminate")
        await asyncio.sleep(STOP_S)
        self._end("kill")

    async def is_over(self, *, orphaned: bool) -> bool:
        """Its process is not needed any more: Ray knows that its keeper is gone; Ray was away and is back, and places
        all processes once more; or nobody has answered for long."""
        here = await answers(self._head)
        over = here and (orphaned or self._misses >= AWAY)
        self._misses = 0 if here else self._misses + 1
        if here or await answers(self._order.broker):
            self._heard = time.monotonic()
        return over or time.monotonic() - self._heard > SILENT_S


async def answers(address: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError):  # `TimeoutError` is an `OSError`
        connecting = asyncio.open_connection(host.strip("[]"), int(port))
        _, writer = await asyncio.wait_for(connecting, CONNECT_S)
        writer.close()
        return True
    return False


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(content)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


async def lines_of_input() -> asyncio.StreamReader:
    """Standard input, a pipe."""
    lines = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    return lines


async def guard(name: str, head: str, host: str, ranks: str) -> Ended:
    words = await lines_of_input()
    try:
        order = msgspec.json.decode(await words.readline(), type=Order)
    except msgspec.DecodeError:  # it is not wanted any more
        return Ended(-signal.SIGTERM, "")
    try:
        with private.TemporaryFolder("rhymed-seat") as folder:
            write_files(folder, order.files)
            values = {"{folder}": str(folder), "{host}": host, "{ranks}": ranks, "{port}": str(free_port())}
            return await Guardian(order, head, words).run(order.command(name, values))
    except OSError as error:  # the disk of temporary files is full, or not writable
        return Ended(1, f"{socket.gethostname()}: {error}")


def main() -> None:
    if os.fork():  # the keeper waits for this process only
        os._exit(0)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the process would inherit
    for variable in [one for one in os.environ if one.startswith(RAYS)]:
        del os.environ[variable]
    name, _, head, host, ranks = sys.argv[1:]
    ended = asyncio.run(guard(name, head, host, ranks))
    with contextlib.suppress(OSError):  # the keeper is gone
        os.write(1, msgspec.json.encode(ended) + b"\n")


if __name__ == "__main__":
    main()
