"""Inside the sandbox: runs one program against its tests, and reports each end as a line of JSON.

Its source is handed to `python -c` where the package is not to be seen: it needs the standard library alone. The job
comes on stdin, reports go to stdout. Each test is a fork: the program cannot see the next test from the last one, and
what it leaves running is killed. The driver never knows what is right: results are compared outside.
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
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # else the program could open our end of the report
    prctl(PR_SET_SUBREAPER, 1, 0, 0, 0)  # what it leaves to itself falls to us
    tell(report, {"ready": True})
    folder = os.getcwd()
    for number, test in enumerate(job["tests"]):
        os.makedirs(f"{folder}/{number}", exist_ok=True)  # an earlier test may have guessed its name
        os.chdir(f"{folder}/{number}")
        how, text = run(job, test, report)
        tell(report, {"how": how, "text": text.decode(errors="replace")})


def tell(report: int, what: dict[str, object]) -> None:
    line = json.dumps(what).encode() + b"\n"
    while line:
        line = line[os.write(report, line) :]


def run(job: dict[str, object], test: dict[str, object], report: int) -> tuple[str, bytes]:
    """How it ended (`ok`: by itself, without an error), and its result."""
    result, told = os.pipe()
    driver = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(report)
            os.close(result)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != driver:
                os._exit(1)  # it was killed before we asked to be, too
            become(job, test, told)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            code = 1
        finally:
            try:
                sys.stdout.flush()
            except BaseException:
                code = 1
            os._exit(code & 255)
    os.close(told)
    how, text = collect(child, result, float(str(job["timeout_s"])))
    os.close(result)
    return how, text


def become(job: dict[str, object], test: dict[str, object], told: int) -> None:
    """The program, with its limits and nothing open but its own."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    given = os.memfd_create("stdin")
    os.write(given, str(test.get("stdin", "")).encode())
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, 0)
    os.dup2(told if "stdin" in test else quiet, 1)
    os.dup2(quiet, 2)
    if told != 3:
        os.dup2(told, 3)
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
    """Until it ends, or has run, said or started too much. Then nothing of it is left."""
    deadline, text, how, ended = time.monotonic() + timeout_s, b"", "", 0
    while not how:
        if select.select([result], [], [], POLL_S)[0]:
            more = os.read(result, 1 << 16)
            text += more
            if not more:  # closed; it may go on for a while
                time.sleep(0.001)
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            ended = 1
            how = "ok" if status == 0 else "failed"
        elif time.monotonic() > deadline:
            how = "late"
        elif len(text) > OUTPUT_BYTES:
            how = "long"
        elif len(family(os.getpid())) > TASKS:
            how = "many"
    bury()
    while ended and len(text) <= OUTPUT_BYTES and select.select([result], [], [], 0)[0]:
        more = os.read(result, 1 << 16)
        if not more:
            break
        text += more
    return ("long", b"") if len(text) > OUTPUT_BYTES else (how, text)


def bury() -> None:
    """Kill and reap until we have no descendant."""
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
    """All that descends from it."""
    found = [root]
    for pid in found:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    found += map(int, file.read().split())
        except OSError:
            continue
    return found[1:]


if __name__ == "__main__":
    main()
