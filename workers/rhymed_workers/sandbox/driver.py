"""Inside the sandbox: runs one program against its tests, and reports the result of each test as a line of JSON.

Imports the standard library only: where the package is not visible, this source is the argument of `python -c`. Reads
its job from stdin and writes reports to stdout. Each test runs in a fork, so no test sees another, and what a test
leaves running is killed. The driver does not know the expected results: they are compared outside the sandbox.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SUBREAPER = 1, 4, 36
TASKS = 64
OUTPUT_BYTES = 1 << 20
FILE_BYTES = 16 << 20
FILES = 64
POLL_S = 0.05

libc = ctypes.CDLL(None)


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    prctl = libc.prctl
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # else the program could open our end of the pipe
    prctl(PR_SET_SUBREAPER, 1, 0, 0, 0)  # orphans of the program become our children
    send(report, {"ready": True})
    folder = os.getcwd()
    for number, test in enumerate(job["tests"]):
        os.makedirs(f"{folder}/{number}", exist_ok=True)  # an earlier test may have made it
        os.chdir(f"{folder}/{number}")
        how, text = run(job, test, report)
        send(report, {"how": how, "text": text.decode(errors="replace")})


def send(report: int, content: dict[str, object]) -> None:
    line = json.dumps(content).encode() + b"\n"
    while line:
        line = line[os.write(report, line) :]


def run(job: dict[str, object], test: dict[str, object], report: int) -> tuple[str, bytes]:
    """How it ended (`ok`: without an error), and its result."""
    result, output = os.pipe()
    driver = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(report)
            os.close(result)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != driver:
                os._exit(1)  # the driver died before the call
            become(job, test, output)
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        except BaseException:
            code = 1
        finally:
            try:
                sys.stdout.flush()
            except BaseException:
                code = 1
            os._exit(code & 255)
    os.close(output)
    how, text = collect(child, result, float(str(job["timeout_s"])))
    os.close(result)
    return how, text


def become(job: dict[str, object], test: dict[str, object], output: int) -> None:
    """Turn this process into the program: its limits, and no descriptor but its own."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    stdin = os.memfd_create("stdin")
    os.write(stdin, str(test.get("stdin", "")).encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    os.dup2(output if "stdin" in test else quiet, 1)
    os.dup2(quiet, 2)
    if output != 3:
        os.dup2(output, 3)
    os.closerange(4, 256)
    if "stdin" in test:
        os.close(3)
    seconds = int(float(str(job["timeout_s"]))) + 1
    for kind, most in (
        (resource.RLIMIT_DATA, int(str(job["memory"]))),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, TASKS),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard),) * 2)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    execute(str(job["program"]), test)


def execute(program: str, test: dict[str, object]) -> None:
    scope: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    if "stdin" in test:
        exec(compile(program, "program.py", "exec"), scope)
        return
    scope["__name__"] = "program"
    exec(compile(program, "program.py", "exec"), scope)
    if "call" in test:
        function = scope.get(str(test["call"]))
        if function is None:
            function = getattr(scope["Solution"](), str(test["call"]))  # type: ignore[operator]
        answer = json.dumps(function(*test["arguments"]), default=list)  # type: ignore[operator, misc]
    else:
        exec(compile(str(test["code"]), "tests.py", "exec"), scope)
        answer = str(test["token"])
    with open(3, "w") as out:
        out.write(answer)


def collect(child: int, result: int, timeout_s: float) -> tuple[str, bytes]:
    """Read its result until it ends or exceeds a limit, then kill what is left of it."""
    deadline, text, how, ended = time.monotonic() + timeout_s, b"", "", 0
    while not how:
        if select.select([result], [], [], POLL_S)[0]:
            more = os.read(result, 1 << 16)
            text += more
            if not more:  # output closed; it may still be running
                time.sleep(0.001)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended = 1
            how = "ok" if status == 0 else "failed"
        elif time.monotonic() > deadline:
            how = "late"
        elif len(text) > OUTPUT_BYTES:
            how = "long"
        elif len(family(os.getpid())) > TASKS:
            how = "many"
    kill_all()
    while ended and len(text) <= OUTPUT_BYTES and select.select([result], [], [], 0)[0]:
        more = os.read(result, 1 << 16)
        if not more:
            break
        text += more
    return ("long", b"") if len(text) > OUTPUT_BYTES else (how, text)


def kill_all() -> None:
    for _ in range(1000):
        for pid in family(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def family(root: int) -> list[int]:
    pids = [root]
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    pids += map(int, file.read().split())
        except OSError:
            continue
    return pids[1:]


if __name__ == "__main__":
    main()
