"""The jail around one process with users' code: `python -m rhymed_workers.sandbox.jail SPEC`. Of a scoring process:

    reward worker                     rhymed_workers.reward: asks, kills, replaces
      └─ guard                        this module: forwards output, ends as the scoring process ended
          └─ init                     rhymed_workers.sandbox.init: init of a PID namespace, or a subreaper
              ├─ scoring process      rhymed_workers.reward.child: loads the scorers, answers items
              │   └─ sandbox          rhymed_workers.sandbox: one program of the model, for the scorer `code`
              └─ orphans              what a scorer started and left

Invariant: nothing outlives what is above it. When init dies, everything in the namespace dies; when the guard dies,
init does; when the reward worker dies, the guard does. The init's namespace has a /proc of its own; where the kernel
refuses a namespace, descendants are found through /proc and killed.

SIGTERM ends the jail. What the jail can enforce here, and why it ended the scoring process, is reported as one JSON
object per line through the pipe `report`. Knows nothing of rewards and items. Starts with the standard library alone:
it must start in milliseconds, and the scoring process is a fork of it.
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

from rhymed_workers.sandbox import init, linux
from rhymed_workers.sandbox.init import END_S, TOO_MANY, Init, redirect_to_null, run_child

POLL_S = 0.01


@dataclass(frozen=True)
class Spec:
    """What the pool asks for."""

    parent: int  # process id of the reward worker
    report: int  # file descriptor
    tasks: int  # processes and threads of the scoring process and all that it starts
    child: str  # module whose `main` is the process in the jail
    isolate: bool = True  # try a PID namespace
    group: bool = True  # try a cgroup

    def argument(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    if sys.platform != "linux":
        return run_child(Spec(**json.loads(sys.argv[1])).child)
    spec = Spec(**json.loads(sys.argv[1]))
    linux.die_with_parent(signal.SIGTERM, spec.parent)
    os.set_inheritable(spec.report, False)
    Guard(spec).run()


class Guard:
    """The process that the pool knows."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._isolated = spec.isolate and linux.isolates()
        self._group = init.make_cgroup(spec.tasks + 1) if spec.group else None
        self._output = OutputLimit()

    def run(self) -> None:
        output, output_end = os.pipe()
        status, status_end = os.pipe()
        signals = _descriptor_of(signal.SIGTERM, signal.SIGCHLD)
        guard = os.getpid()
        if self._isolated:
            linux.own_processes()
            linux.die_with_parent(signal.SIGTERM, self._spec.parent)  # new credentials may have unset it
        self._init = os.fork()
        if self._init == 0:
            try:
                os.close(status)
                seen = 0 if self._isolated else guard
                Init(self._spec.tasks, seen, self._group, self._spec.report, self._spec.child).run(
                    (output, output_end), status_end
                )
            finally:
                os._exit(1)
        for end in (output_end, status_end):
            os.close(end)
        redirect_to_null(0, 1)  # the pool must see when the scoring process closes its pipes
        self._report(isolated=self._isolated, group=self._group is not None)
        self._watch(output, signals)
        self._finish(output, status)

    def _watch(self, output: int, signals: int) -> None:
        """Until init ends."""
        open_ends = [signals, output]
        while True:
            for ready in select.select(open_ends, [], [])[0]:
                if ready == output and not self._output.forward(output):
                    open_ends.remove(output)
                elif ready == signals:
                    received = os.read(signals, 64)
                    if signal.SIGTERM in received:
                        return self._end_init()
                    if signal.SIGCHLD in received and self._init_has_ended():
                        return None

    def _init_has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._init, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _end_init(self) -> None:
        """A namespace dies with its init; without one init needs time to kill its descendants."""
        os.kill(self._init, signal.SIGKILL if self._isolated else signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and not self._isolated:
            if self._init_has_ended():
                return
            time.sleep(POLL_S)
        os.kill(self._init, signal.SIGKILL)

    def _finish(self, output: int, status: int) -> None:
        """Kill and remove what is left, and end as the scoring process did."""
        os.waitpid(self._init, 0)
        refused = False
        if self._group is not None:
            refused = self._group.refused()
            deadline = time.monotonic() + END_S
            while (left := self._group.pids()) and time.monotonic() < deadline:  # only without a namespace
                linux.kill(left)
                time.sleep(POLL_S)
            self._group.remove()
        self._output.finish(output)
        ended = os.read(status, 64).split()
        self._report(too_many=refused or (len(ended) > 1 and int(ended[1]) == TOO_MANY))
        _end_as(int(ended[0]) if ended else signal.SIGKILL)

    def _report(self, **facts: bool) -> None:
        with contextlib.suppress(OSError):
            os.write(self._spec.report, json.dumps(facts).encode() + b"\n")


def _descriptor_of(*signals: int) -> int:
    """A file descriptor that delivers one byte, its number, for each of these signals."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return readable


def _end_as(status: int) -> None:
    """Exit with the same exit status, or by the same signal."""
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = os.WTERMSIG(status)
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


# Bounds what a scorer prints, on its way to our stderr.

BURST_BYTES = 1 << 16
REFILL_BYTES_S = 1 << 10
LAST_OUTPUT_S = 0.5


class OutputLimit:
    """Forwards a burst at once, then a little per second; the rest is counted and left out."""

    def __init__(self) -> None:
        self._budget = float(BURST_BYTES)
        self._since = time.monotonic()
        self._left_out = 0

    def forward(self, source: int) -> bool:
        """False at the end of the output."""
        text = os.read(source, 1 << 20)
        now = time.monotonic()
        self._budget = min(BURST_BYTES, self._budget + (now - self._since) * REFILL_BYTES_S)
        self._since = now
        waits = self._left_out and self._budget < REFILL_BYTES_S  # else each byte of it had a report before it
        kept = b"" if waits else text[: int(self._budget)]
        if kept and self._left_out:
            self._report_left_out()
        self._budget -= len(kept)
        self._left_out += len(text) - len(kept)
        _write(kept)
        return bool(text)

    def finish(self, source: int) -> None:
        """Forward what is still in the pipe."""
        deadline = time.monotonic() + LAST_OUTPUT_S
        while time.monotonic() < deadline and select.select([source], [], [], 0)[0] and self.forward(source):
            pass
        if self._left_out:
            self._report_left_out()

    def _report_left_out(self) -> None:
        _write(f"\n[... a scorer printed {self._left_out:,} bytes more, which are left out]\n".encode())
        self._left_out = 0


def _write(text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(2, text) :]


if __name__ == "__main__":
    main()
