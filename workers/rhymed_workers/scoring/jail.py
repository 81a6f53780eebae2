"""The cage around one scoring subprocess: `python -m rhymed_workers.scoring.jail SPEC`.

Three processes. The *warden*, which the pool knows, passes on what the scorer prints, as far as that is of reasonable
length, and ends as the scorer ended. Its child, the *keeper*, is the init of a PID namespace with a /proc of its own
where the kernel allows it, otherwise the one that orphans fall to: whoever the scorer starts cannot leave its
reach. The keeper's child is the *scorer* (rhymed_workers.scoring.child). When the keeper dies, everything in the namespace
dies; when the warden dies, the keeper does; when the reward worker dies, the warden does.

SIGTERM ends them all, SIGUSR1 is passed to the scorer. What the cage can enforce here and why it ended the scorer is
told, a JSON object a line, through the pipe `notes`. Knows nothing of rewards and items. Starts with the standard
library alone, since the scorer's process is a fork of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass

from rhymed_workers.sandbox import linux
from rhymed_workers.scoring import cgroup

KEPT_BYTES = 1 << 16  # of what a scorer prints
REFILL_BYTES_S = 1 << 10
WATCH_S = 0.1
LAST_WORDS_S = 0.5
PATIENCE_S = 3.0
TOO_MANY = 1


@dataclass(frozen=True)
class Spec:
    """What the pool asks for."""

    parent: int  # process id of the pool
    notes: int  # file descriptor
    tasks: int  # processes and threads that the scorer and all that it starts may be
    isolate: bool = True  # try a PID namespace
    group: bool = True  # try a cgroup

    def argument(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    if sys.platform != "linux":
        return _score()
    spec = Spec(**json.loads(sys.argv[1]))
    linux.die_with_parent(signal.SIGTERM, spec.parent)
    os.set_inheritable(spec.notes, False)
    Warden(spec).run()


def _score() -> None:
    from rhymed_workers.scoring import child

    with contextlib.suppress(BrokenPipeError):  # the pool is gone: nobody to tell
        child.main()


class Warden:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._isolated = spec.isolate and linux.isolates()
        self._group = cgroup.make(spec.tasks + 1) if spec.group else None
        self._printed = Printed()
        self._refused = False

    def run(self) -> None:
        words, said = os.pipe()
        status, tell = os.pipe()
        wake = _wake_on(signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
        warden = os.getpid()
        if self._isolated:
            linux.own_processes()
            linux.die_with_parent(signal.SIGTERM, self._spec.parent)  # new credentials may have unset it
        self._keeper = os.fork()
        if self._keeper == 0:
            try:
                os.close(words)
                os.close(status)
                Keeper(self._spec, 0 if self._isolated else warden, self._group).run(said, tell)
            finally:
                os._exit(1)
        for end in (said, tell):
            os.close(end)
        _let_go(0, 1)  # the pool must see when the scorer closes its pipes
        self._note(isolated=self._isolated, group=self._group is not None)
        self._watch(words, wake)
        self._bury(words, status)

    def _watch(self, words: int, wake: int) -> None:
        """Until the keeper ends."""
        open_ends = [wake, words]
        while True:
            for ready in select.select(open_ends, [], [])[0]:
                if ready == words and not self._printed.forward(words):
                    open_ends.remove(words)
                elif ready == wake:
                    got = os.read(wake, 64)
                    if signal.SIGTERM in got:
                        return self._end_keeper()
                    if signal.SIGUSR1 in got:
                        os.kill(self._keeper, signal.SIGUSR1)
                    if signal.SIGCHLD in got and os.waitid(
                        os.P_PID, self._keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT
                    ):
                        return None

    def _end_keeper(self) -> None:
        """A namespace dies with its init; without one the keeper kills all it finds, and is given time."""
        os.kill(self._keeper, signal.SIGKILL if self._isolated else signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self._isolated:
            if os.waitid(os.P_PID, self._keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.01)
        os.kill(self._keeper, signal.SIGKILL)

    def _bury(self, words: int, status: int) -> None:
        """Nothing is left; end as the scorer did."""
        os.waitpid(self._keeper, 0)
        if self._group is not None:
            self._refused = self._group.refused()
            deadline = time.monotonic() + PATIENCE_S
            while (left := self._group.pids()) and time.monotonic() < deadline:  # only without a namespace
                _kill(left)
                time.sleep(0.01)
            self._group.remove()
        self._printed.finish(words)
        told = os.read(status, 64).split()
        self._note(too_many=self._refused or (len(told) > 1 and int(told[1]) == TOO_MANY))
        _end_as(int(told[0]) if told else signal.SIGKILL)

    def _note(self, **said: bool) -> None:
        with contextlib.suppress(OSError):
            os.write(self._spec.notes, json.dumps(said).encode() + b"\n")


class Keeper:
    """`parent`: the warden's id as the keeper sees it."""

    def __init__(self, spec: Spec, parent: int, group: cgroup.Group | None) -> None:
        self._spec = spec
        self._parent = parent
        self._group = group
        self._isolated = parent == 0

    def run(self, said: int, tell: int) -> None:
        signal.set_wakeup_fd(-1)
        waited = {signal.SIGCHLD, signal.SIGUSR1} | (set() if self._isolated else {signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_BLOCK, waited)  # blocked, they reach also an init; others do not
        for one in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        linux.die_with_parent(signal.SIGKILL, self._parent)
        if _unread(tell):
            os._exit(1)  # the warden was faster; seen from a namespace its id tells nothing
        if self._group is not None:
            self._group.join()
        if self._isolated:
            linux.own_proc()
        else:
            linux.prctl(linux.PR_SET_SUBREAPER, 1)
        keeper = os.getpid()
        self._scorer = os.fork()
        if self._scorer == 0:
            self._become_scorer(keeper, said, waited)
        os.close(said)
        _let_go(0, 1)
        os.write(tell, b"%d %d" % self._keep(waited))
        self._kill_rest()
        os._exit(0)

    def _become_scorer(self, keeper: int, said: int, blocked: set[signal.Signals]) -> None:
        code = 1
        try:
            os.setsid()  # else a signal to its own group would hit keeper and warden
            linux.die_with_parent(signal.SIGKILL, keeper)
            os.dup2(said, 2)
            os.closerange(3, max(said, self._spec.notes, 64) + 1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            _score()
            code = 0
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code)

    def _keep(self, waited: set[signal.Signals]) -> tuple[int, int]:
        """Until the scorer ends: its wait status, and whether it was ended for being too many."""
        watch_s = WATCH_S if self._group is None else 3600.0
        while True:
            got = signal.sigtimedwait(waited, watch_s)
            if got is None:
                if self._group is None and linux.tasks(self._everybody()) > self._spec.tasks:
                    return signal.SIGKILL, TOO_MANY
            elif got.si_signo == signal.SIGTERM:
                return signal.SIGKILL, 0
            elif got.si_signo == signal.SIGUSR1:
                os.kill(self._scorer, signal.SIGUSR1)
            elif (status := self._reap()) is not None:
                return status, 0

    def _reap(self) -> int | None:
        """Orphans too. The scorer's wait status if it is among them."""
        ended = None
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended = found[1] if found[0] == self._scorer else ended
        return ended

    def _everybody(self) -> list[int]:
        if self._isolated:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return linux.family(linux.children(os.getpid()))

    def _kill_rest(self) -> None:
        """In a namespace the kernel does it. Elsewhere: until nobody is there, for they may be starting more."""
        deadline = time.monotonic() + PATIENCE_S / 2
        while not self._isolated and (left := self._everybody()) and time.monotonic() < deadline:
            _kill(left)
            self._reap()


class Printed:
    """What the scorer prints, on its way to our stderr: some at once, then little by little, the rest is counted."""

    def __init__(self) -> None:
        self._room = float(KEPT_BYTES)
        self._since = time.monotonic()
        self._left_out = 0

    def forward(self, source: int) -> bool:
        """False when nothing more will come."""
        text = os.read(source, 1 << 20)
        now = time.monotonic()
        self._room = min(KEPT_BYTES, self._room + (now - self._since) * REFILL_BYTES_S)
        self._since = now
        kept = text[: int(self._room)]
        if kept and self._left_out:
            self._tell()
        self._room -= len(kept)
        self._left_out += len(text) - len(kept)
        _write(kept)
        return bool(text)

    def finish(self, source: int) -> None:
        """What is in the pipe still."""
        deadline = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < deadline and select.select([source], [], [], 0)[0] and self.forward(source):
            pass
        if self._left_out:
            self._tell()

    def _tell(self) -> None:
        _write(f"\n[... a scorer printed {self._left_out:,} bytes more, which are left out]\n".encode())
        self._left_out = 0


def _unread(pipe: int) -> bool:
    """Whether nobody is left at a pipe's other end."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def _write(text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]


def _wake_on(*signals: int) -> int:
    """A file descriptor that gives a byte for each that comes."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for one in signals:
        signal.signal(one, lambda *_: None)
    return wake


def _let_go(*descriptors: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in descriptors:
        os.dup2(nothing, one)
    os.close(nothing)


def _kill(them: list[int]) -> None:
    for pid in them:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _end_as(status: int) -> None:
    """With the same exit status, or by the same signal."""
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = os.WTERMSIG(status)
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    main()
