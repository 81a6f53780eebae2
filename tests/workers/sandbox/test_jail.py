"""Attacks by a scorer, each through a real pool, on every kind of jail that this machine can make."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed_workers.reward.child import item
from rhymed_workers.reward.outcome import Outcome
from rhymed_workers.reward.pool import Pool
from rhymed_workers.sandbox import init, jailed, linux
from tests.workers.sandbox.processes import alive, in_jails, running, wait_for

ATTACKS = """
import ctypes, os, resource, signal, subprocess, sys, tempfile, threading, time

def bomb():
    # Ends by itself also where nothing stops it.
    end = time.monotonic() + 2
    for _ in range(1000):
        if os.fork() == 0:
            while time.monotonic() < end + 3: time.sleep(0.1)
            os._exit(0)
        if time.monotonic() > end: break

def daemon(mark):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", mark])
        os._exit(0)
    os.wait()

def spin():
    while True: pass

def descend(depth): return descend(depth + 1) + 1

def frame(body): return len(body).to_bytes(4, "little") + body

def score(solution_str, ground_truth, extra_info=None):
    match solution_str.split():
        case ["good", number]: return float(number)
        case ["slow", number]: time.sleep(1); return float(number)
        case ["bomb"]: bomb(); time.sleep(1)
        case ["caught_bomb"]:
            try: bomb()
            except OSError: time.sleep(60)
        case ["threads"]:
            for _ in range(1000): threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        case ["spin"]: spin()
        case ["string"]: return float(len("x" * (10 << 30)))
        case ["segfault"]: ctypes.string_at(0)
        case ["abort"]: os.abort()
        case ["exit"]: sys.exit(3)
        case ["os_exit"]: os._exit(3)
        case ["kill_parent"]: os.kill(os.getppid(), 9); time.sleep(0.2); return 1.0
        case ["term_parent"]: os.kill(os.getppid(), 15); time.sleep(0.2); return 1.0
        case ["kill_group"]: os.killpg(0, 9); time.sleep(5)
        case ["kill_all"]: os.kill(-1, 9); time.sleep(5)
        case ["close"]: os.closerange(0, 300); time.sleep(60)
        case ["garbage"]: [write(fd, b"\\xff" * 100) for fd in range(3, 30)]; time.sleep(5)
        case ["length"]: [write(fd, b"\\xff\\xff\\xff\\x7f") for fd in range(3, 30)]; time.sleep(5)
        case ["forge"]:
            import msgspec
            from rhymed_workers.reward.child import Answer
            from rhymed_workers.reward.scorers.result import Verdict
            for number in range(1, 50):
                answer = msgspec.msgpack.encode(Answer(number, [Verdict(reward=99.0)]))
                for fd in range(3, 30): write(fd, frame(answer))
            return 1.0
        case ["file"]:
            with tempfile.TemporaryFile() as out:
                for _ in range(200): out.write(bytes(1 << 20))
        case ["files"]: [open(os.devnull) for _ in range(100_000)]
        case ["daemon", mark]: daemon(mark); return 1.0
        case ["background", mark]: subprocess.run(f"sleep {mark} &", shell=True); return 1.0
        case ["children", mark]:
            for _ in range(30): KEPT.append(subprocess.Popen(["sleep", mark]))
            return 1.0
        case ["few", mark]:
            for _ in range(4): KEPT.append(subprocess.Popen(["sleep", mark]))
            return 1.0
        case ["print"]:
            for _ in range(1000): os.write(1, b"all work and no play\\n" * 50_000)
            return 1.0
        case ["recursion"]: return descend(0)
        case ["message"]: raise ValueError("x" * (1 << 30))
        case ["move"]:
            os.chdir("/"); os.umask(0o777); os.environ["HOME"] = "/nowhere"; os.environ.pop("PATH", None)
            sys.stdout.close(); sys.stderr = None; os.close(1); os.close(2)
            return 1.0
        case ["where"]:
            mask = os.umask(0); os.umask(mask)
            print("still there")
            os.write(1, b"and the descriptor")
            return float(os.getcwd() == HOME[0] and mask == HOME[1] and dict(os.environ) == HOME[2])
        case ["deaf"]:
            for one in signal.Signals:
                if one not in (signal.SIGKILL, signal.SIGSTOP): signal.signal(one, signal.SIG_IGN)
            spin()
        case ["deaf_once"]:
            signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_DFL)
            return float(os.getpid())
        case ["hearing"]: return float(signal.getsignal(signal.SIGALRM) != signal.SIG_IGN)
        case ["thread"]: threading.Thread(target=spin, daemon=True).start(); return 1.0
        case ["late_thread"]:
            threading.Thread(target=lambda: (time.sleep(0.3), spin()), daemon=True).start()
            return 1.0
        case ["busy_child"]: KEPT.append(subprocess.Popen([sys.executable, "-c", "while True: pass"])); return 1.0
        case ["bequeath"]:
            threading.Thread(target=lambda: (time.sleep(0.5), os._exit(5)), daemon=True).start()
            return 1.0
        case ["once", file]:
            if not os.path.exists(file): open(file, "x").close(); os._exit(9)
            return 1.0
        case ["served"]: SERVER.stdin.write(b"ping\\n"); SERVER.stdin.flush(); return float(SERVER.stdout.readline())
        case ["environment"]: return float("SECRET" in os.environ)
        case ["core"]: return float(resource.getrlimit(resource.RLIMIT_CORE)[1])
        case ["peers"]: return float(len([name for name in os.listdir("/proc") if name.isdigit()]))

def write(fd, body):
    try: os.write(fd, body)
    except OSError: pass

umask = os.umask(0); os.umask(umask)
HOME = os.getcwd(), umask, dict(os.environ)
KEPT = []
SERVER = subprocess.Popen(["sh", "-c", "while read line; do echo 7; done"], stdin=-1, stdout=-1)
"""

JAILS = {"namespace": {}, "no_cgroup": {"group": False}, "no_namespace": {"isolate": False}}
JAILS["bare"] = JAILS["no_cgroup"] | JAILS["no_namespace"]


STRONGEST = "namespace" if linux.isolates() else "bare"
"""`make test` attacks the strongest jail of this machine, `make test-thorough` all the others."""


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name == STRONGEST else pytest.mark.thorough) for name in JAILS]
)
def jail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    isolated = JAILS[name].get("isolate", True)
    if isolated and not linux.isolates():
        pytest.skip("the kernel refuses namespaces here")
    if name in ("namespace", "no_namespace") and not grouped():
        pytest.skip("no pids cgroup can be made here")
    monkeypatch.setattr(jailed, "JAIL_OPTIONS", JAILS[name])
    return name


def grouped() -> bool:
    group = init.make_cgroup(8)
    if group is not None:
        group.remove()
    return group is not None


@pytest.fixture
async def pool(tmp_path: Path, jail: str) -> AsyncIterator[Pool]:
    async with Pool(config(tmp_path)) as made:
        yield made
    assert not in_jails()


def config(folder: Path, **reward: Any) -> Config:
    (folder / "attacks.py").write_text(ATTACKS)
    defaults = {"scorer": f"{folder}/attacks.py:score", "processes": 2, "timeout_s": 60.0, "processes_limit": 24}
    return Config.model_validate({"reward": defaults | {"memory_gib": 3.0, "file_mib": 16} | reward})


async def ask(pool: Pool, text: str) -> Outcome:
    return await pool.score(item(text, {"prompt": "q", "answer": "4"}))


async def attack(pool: Pool, text: str) -> Outcome:
    """While another sample is scored, and samples after it."""
    beside, outcome = await asyncio.gather(ask(pool, "slow 5"), ask(pool, text))
    after = await asyncio.gather(*(ask(pool, f"good {number}") for number in range(4)))
    assert (beside.reward, beside.error) == (5.0, None)
    assert [one.reward for one in after] == [0.0, 1.0, 2.0, 3.0]
    return outcome


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("bomb", "it tried to start more than 24 processes (reward.processes_limit)"),
        ("string", "used more than 3 GiB of memory (reward.memory_gib)"),
        ("segfault", "ended with signal SIGSEGV"),
        ("abort", "ended with signal SIGABRT"),
        ("exit", "SystemExit: 3"),
        ("os_exit", "ended with exit status 3"),
        ("kill_group", "ended with signal SIGKILL"),
        ("close", "ended with a closed pipe"),
        ("garbage", "ended with a frame of"),
        ("length", "ended with a frame of"),
        ("file", "it wrote a file larger than 16 MiB (reward.file_mib)"),
        ("files", "it opened more than 256 files (reward.open_files)"),
        ("recursion", "RecursionError"),
        ("message", "ValueError: xxxx"),
    ],
)
async def test_an_attack_hurts_its_own_sample_only(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, work: str, message: str
) -> None:
    if work not in ("close", "garbage", "length"):  # these live on, and are not waited for
        monkeypatch.setattr(jailed, "EXIT_STATUS_S", 60.0)
    outcome = await attack(pool, work)
    assert outcome.reward is None
    assert message in str(outcome.error)
    assert len(str(outcome.error)) < 5000
    assert not outcome.timeout


async def test_an_endless_loop_is_ended(tmp_path: Path, jail: str) -> None:
    async with Pool(config(tmp_path, timeout_s=5)) as pool:
        outcome = await attack(pool, "spin")
        assert outcome.timeout
        assert "reward.timeout_s = 5 s and was killed" in str(outcome.error)
        deaf = await attack(pool, "deaf")
        assert deaf.timeout
    assert not in_jails()


async def test_a_bomb_that_waits_for_its_time_limit_is_named(tmp_path: Path, jail: str) -> None:
    async with Pool(config(tmp_path, timeout_s=8)) as pool:
        outcome = await attack(pool, "caught_bomb")
        assert "it tried to start more than 24 processes (reward.processes_limit)" in str(outcome.error)


async def test_threads_count_as_processes(pool: Pool) -> None:
    assert "it tried to start more than 24 processes" in str((await attack(pool, "threads")).error)


async def test_the_worker_cannot_be_signalled(pool: Pool, jail: str) -> None:
    """In a namespace only init is visible, which the kernel protects; without one init is hurt."""
    for work in ("kill_parent", "term_parent", "kill_all") if jail in ("namespace", "no_cgroup") else ():
        outcome = await attack(pool, work)
        assert outcome.reward == 1.0 or work == "kill_all"
    if jail in ("no_namespace", "bare"):
        assert "ended with signal SIGKILL" in str((await attack(pool, "kill_parent")).error)


async def test_only_its_own_processes_are_to_be_seen(pool: Pool, jail: str) -> None:
    seen = (await ask(pool, "peers")).reward
    assert (seen == 3.0) == (jail in ("namespace", "no_cgroup"))  # init, the scoring process, and its server


async def test_a_forged_answer_is_no_other_samples(pool: Pool) -> None:
    for _ in range(3):
        assert "an answer that it was not asked for" in str((await attack(pool, "forge")).error)


@pytest.mark.parametrize("how", ["daemon", "background"])
async def test_what_is_left_to_itself_ends_with_the_item(pool: Pool, jail: str, how: str) -> None:
    mark = f"61.0{os.getpid()}"
    assert (await attack(pool, f"{how} {mark}")).reward == 1.0
    assert not running(mark)
    assert (await ask(pool, "served")).reward == 7.0  # what ran before stays


async def test_many_children_wear_a_process_out(pool: Pool) -> None:
    mark = f"62.0{os.getpid()}"
    outcome = await attack(pool, f"children {mark}")  # more than 24: seen at once, or when the item ends
    assert outcome.reward == 1.0 or "more than 24 processes" in str(outcome.error)
    assert await wait_for(lambda: not running(mark))
    for _ in range(20):
        assert (await ask(pool, f"few {mark}")).reward == 1.0
        assert len(running(mark)) <= 3 * 20


async def test_what_is_printed_is_bounded(tmp_path: Path, jail: str, capfd: pytest.CaptureFixture[str]) -> None:
    async with Pool(config(tmp_path)) as pool:
        assert (await attack(pool, "print")).reward == 1.0
    said = capfd.readouterr().err
    assert "all work and no play" in said
    assert len(said) < 300_000
    left_out = [line for line in said.splitlines() if "a scorer printed" in line]
    assert sum(int(line.split()[4].replace(",", "")) for line in left_out) > 900_000_000


async def test_folder_umask_environment_and_streams_are_put_back(tmp_path: Path, jail: str) -> None:
    async with Pool(config(tmp_path, processes=1)) as pool:
        for _ in range(3):
            assert (await ask(pool, "move")).reward == 1.0
            outcome = await ask(pool, "where")
            assert (outcome.reward, outcome.error) == (1.0, None)


async def test_signal_handlers_are_put_back(tmp_path: Path, jail: str) -> None:
    async with Pool(config(tmp_path, processes=1, timeout_s=3)) as pool:
        for _ in range(3):
            assert (await ask(pool, "deaf_once")).error is None
            assert (await ask(pool, "hearing")).reward == 1.0


@pytest.mark.parametrize("work", ["thread", "late_thread", "busy_child"])
async def test_work_that_goes_on_ends_with_its_process(pool: Pool, work: str) -> None:
    before = set(pool.pids)
    assert (await ask(pool, work)).reward == 1.0
    deadline = asyncio.get_running_loop().time() + 60
    while before <= set(pool.pids) and asyncio.get_running_loop().time() < deadline:
        assert (await ask(pool, "good 1")).reward == 1.0
        await asyncio.sleep(0.3)
    assert not before <= set(pool.pids)


async def test_an_inherited_death_costs_a_second_try_only(tmp_path: Path, jail: str) -> None:
    async with Pool(config(tmp_path, processes=1)) as pool:
        assert (await ask(pool, "bequeath")).reward == 1.0
        assert (await ask(pool, "slow 3")).reward == 3.0
        assert (await ask(pool, f"once {tmp_path}/file")).reward is None or (tmp_path / "file").exists()
        assert (await ask(pool, "os_exit")).error is not None


async def test_nobody_dumps_core(pool: Pool) -> None:
    assert (await ask(pool, "core")).reward == 0.0


async def test_no_group_is_left_behind(tmp_path: Path) -> None:
    if not grouped():
        pytest.skip("no pids cgroup can be made here")
    async with Pool(config(tmp_path)) as pool:
        await ask(pool, "os_exit")
        await wait_for(lambda: pool.pids)
        guards = pool.pids
        assert all(group_of(pid) for pid in guards)
        os.kill(guards[0], 9)  # it cannot remove its own: the next one does
        assert await wait_for(lambda: not alive(guards[0]))
        assert (await ask(pool, "good 1")).reward == 1.0
    group = init.make_cgroup(8)
    assert group is not None
    group.remove()
    assert not any(group_of(pid) for pid in guards)


def group_of(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").rglob(f"{init.PREFIX}{pid}"))


async def test_what_holds_the_scorers_is_said(tmp_path: Path, jail: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with Pool(config(tmp_path)):
        pass
    (line,) = [one.getMessage() for one in caplog.records if "scoring processes run" in one.getMessage()]
    assert ("PID namespaces of their own" in line) == (jail in ("namespace", "no_cgroup"))
    assert ("limited by a cgroup" in line) == (jail in ("namespace", "no_namespace"))
