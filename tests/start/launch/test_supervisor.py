"""With real processes: one that dies is restarted, one that is stopped is gone, and so are its children."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rhymed.placement.plan import Command
from rhymed.start.launch import supervisor
from rhymed.start.launch.supervisor import Supervisor


@pytest.fixture
def logs(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: tmp_path / f"{name}.log"


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Command]:
    """A command that runs the given Python text."""

    def write(name: str, text: str, *arguments: object) -> Command:
        (tmp_path / "script.py").write_text(text)
        return Command(name, [sys.executable, str(tmp_path / "script.py"), *map(str, arguments)])

    return write


async def until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def test_a_killed_process_is_started_again_and_said_so(tmp_path, logs, script) -> None:
    pids = tmp_path / "pids"
    text = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(60)"
    reported: list[str] = []

    def read() -> list[int]:
        return [int(line) for line in pids.read_text().splitlines()] if pids.exists() else []

    async with Supervisor([script("worker", text, pids)], logs, reported.append):
        await until(lambda: len(read()) == 1)
        os.kill(read()[0], 9)
        await until(lambda: len(read()) == 2)
        assert "worker ended (signal SIGKILL); starting it again" in reported[0]
    assert not any(alive(pid) for pid in read())


async def test_settings_come_from_the_configuration_alone(tmp_path, logs, script, monkeypatch) -> None:
    """It includes the environment and what overrides it: `-o`, a new run name, an evaluation without steps."""
    monkeypatch.setenv("RHYMED_TRAINER__STEPS", "4")
    monkeypatch.setenv("RHYMED_CONSOLE", "1")
    names = tmp_path / "names"
    text = "import os, sys, time; open(sys.argv[1], 'w').write(' '.join(os.environ) + '.'); time.sleep(60)"
    async with Supervisor([script("worker", text, names)], logs, print):
        await until(lambda: names.exists() and names.read_text().endswith("."))
    found = {name for name in names.read_text().rstrip(".").split() if name.startswith("RHYMED_")}
    assert found == {"RHYMED_CONSOLE", "RHYMED_SUPERVISED", "RHYMED_SUPERVISOR"}


async def test_what_a_dead_process_left_behind_goes_too(tmp_path, logs, script) -> None:
    text = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    file = tmp_path / "grandchild"
    async with Supervisor([script("worker", text, file)], logs, lambda _: None):
        await until(lambda: file.exists() and file.read_text() != "")
        grandchild = int(file.read_text())
        assert alive(grandchild)
    await until(lambda: not alive(grandchild))


async def test_one_that_fails_every_time_ends_the_run_with_its_log_named(logs, script, monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    command = script("trainer", "import sys; print('no such model'); sys.exit(3)")
    async with Supervisor([command], logs, lambda _: None) as running:
        await asyncio.wait_for(running.failed.wait(), 60)
        assert "trainer.out" in running.failure
    assert "ended 2 times: no such model" in running.failure
    assert "no such model" in logs("trainer").with_suffix(".out").read_text()


async def test_one_that_ignores_sigterm_is_killed(logs, script, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(supervisor, "STOP_S", 0.5)
    file = tmp_path / "pid"
    text = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    async with asyncio.timeout(100), Supervisor([script("stubborn", text, file)], logs, lambda _: None):
        await until(lambda: file.exists() and file.read_text() != "")
        pid = int(file.read_text())
    assert not alive(pid)


async def test_what_cannot_get_better_is_not_tried_again(logs, script) -> None:
    command = script("reward-0", "import sys; print('no such function'); sys.exit(2)")
    reported: list[str] = []
    async with Supervisor([command], logs, reported.append) as running:
        await asyncio.wait_for(running.failed.wait(), 60)
    assert reported == []
    assert "reward-0 ended once and for all: no such function" in running.failure


async def test_an_engine_that_does_not_start_twice_with_the_same_words_is_not_tried_again(logs, script) -> None:
    text = (
        "import sys; print('rhymed: Unstartable: vLLM did not start: no such operator\\n  in torch');"
        "print('a library says goodbye'); sys.exit(69)"
    )
    reported: list[str] = []
    async with Supervisor([script("rollout-0", text)], logs, reported.append) as running:
        await asyncio.wait_for(running.failed.wait(), 60)
    assert len(reported) == 1
    words = "Unstartable: vLLM did not start: no such operator in torch"
    assert f"rollout-0 ended 2 times: {words}" in running.failure


async def test_an_engine_that_has_worked_is_tried_again_though_it_does_not_start_twice(
    logs, script, monkeypatch, tmp_path
) -> None:
    """Its memory may not be free at once after it was killed."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 0.05)
    text = (
        "import os, sys\n"
        "with open(sys.argv[1], 'a') as file: file.write('.')\n"
        "if os.path.getsize(sys.argv[1]) == 1: os.kill(os.getpid(), 9)\n"
        "print('rhymed: Unstartable: Free memory on device'); sys.exit(69)\n"
    )
    lives = tmp_path / "lives"
    async with Supervisor([script("rollout-0", text, lives)], logs, lambda _: None) as running:
        await until(lambda: lives.exists() and len(lives.read_text()) >= 4)
        assert not running.failed.is_set()


async def test_one_that_was_sent_away_is_started_again_but_the_broker_is_not(
    logs, script, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "LEFT_S", 0.1)
    starts = tmp_path / "starts"
    command = script("rollout-0", "import sys; open(sys.argv[1], 'a').write('x')", starts)
    broker = Command("broker", [sys.executable, "-c", "pass"])
    reported: list[str] = []
    async with Supervisor([command, broker], logs, reported.append) as running:
        await until(lambda: starts.exists() and len(starts.read_text()) >= 2)
        await until(lambda: running.left("broker"))
    assert "rollout-0 had left; starting it again" in reported
    assert not any("broker" in line for line in reported)


async def test_a_restart_says_why_and_a_full_disk_is_waited_for(logs, script, monkeypatch, tmp_path: Path) -> None:
    reported: list[str] = []
    command = script("trainer", "import sys; print('rhymed: CheckpointError: no room'); sys.exit(1)")
    async with Supervisor([command], logs, reported.append) as running:
        await until(lambda: bool(reported))
        assert reported[0].startswith("trainer ended (status 1: CheckpointError: no room); starting it again")
        usage = supervisor.shutil.disk_usage(tmp_path)
        real = supervisor.shutil.disk_usage
        monkeypatch.setattr(supervisor.shutil, "disk_usage", lambda path: usage._replace(free=0))
        await until(lambda: any("waits: trainer ended, and the disk under" in line for line in reported))
        assert not running.failed.is_set()
        again = len(reported)
        monkeypatch.setattr(supervisor.shutil, "disk_usage", real)
        await until(lambda: any("starting it again" in line for line in reported[again:]))
        monkeypatch.setattr(supervisor, "FULL_S", 0.0)
        monkeypatch.setattr(supervisor.shutil, "disk_usage", lambda path: usage._replace(free=0))
        await asyncio.wait_for(running.failed.wait(), 60)
    assert running.hopeless
    assert "is full: make room" in running.failure


async def test_one_that_keeps_dying_is_not_given_up_while_the_run_gets_on(
    logs, script, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 0.05)
    lives = tmp_path / "lives"
    text = (
        "import os, sys, time\n"
        "with open(sys.argv[1], 'a') as file: file.write('.')\n"
        "told = sys.argv[1] + str(os.path.getsize(sys.argv[1]))\n"
        "while not os.path.exists(told): time.sleep(0.01)\n"
        "os.kill(os.getpid(), 9)\n"
    )

    def die(life: int) -> None:
        Path(f"{lives}{life}").touch()

    def count() -> int:
        return len(lives.read_text()) if lives.exists() else 0

    running = Supervisor([script("worker", text, lives)], logs, lambda _: None)
    async with running:
        for life in range(1, 6):
            await until(lambda life=life: count() >= life)
            running.progressed(further=True)
            die(life)
        await until(lambda: count() == 6)
        assert not running.failed.is_set()
        for life in range(6, 12):
            die(life)
        await asyncio.wait_for(running.failed.wait(), 60)  # now it makes no progress


async def test_workers_hand_back_while_broker_and_store_are_there(tmp_path, script, logs) -> None:
    text = (
        "import os, signal, sys, time\n"
        "here, name = sys.argv[1:]\n"
        "def end(*_):\n"
        "    time.sleep(0.5)\n"
        "    others = [one for one in ('broker', 'store') if os.path.exists(f'{here}/{one}.up')]\n"
        "    open(f'{here}/{name}.told', 'w').write(' '.join(others))\n"
        "    os.remove(f'{here}/{name}.up')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(f'{here}/{name}.up', 'w')\n"
        "while True: time.sleep(0.05)\n"
    )
    names = ("store", "broker", "trainer", "rollout-0")
    async with Supervisor([script(name, text, tmp_path, name) for name in names], logs, lambda _: None):
        await until(lambda: len(list(tmp_path.glob("*.up"))) == len(names))
    reported = {name: (tmp_path / f"{name}.told").read_text() for name in names}
    both = "broker store"
    assert reported == {"trainer": both, "rollout-0": both, "broker": both, "store": "store"}


async def test_only_the_leader_is_asked_to_end_and_may_end_its_children_itself(tmp_path, logs, script) -> None:
    text = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', \"import signal, time; print('ready', flush=True);"
        ' signal.sigwait([signal.SIGTERM])"], stdout=subprocess.PIPE)\n'
        "child.stdout.readline()\n"
        "def end(*_):\n"
        "    open(sys.argv[1], 'w').write(f'child {child.poll()}')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(sys.argv[1], 'w').write('up')\n"
        "while True: time.sleep(0.05)\n"
    )
    file = tmp_path / "told"
    async with Supervisor([script("worker", text, file)], logs, lambda _: None):
        await until(lambda: file.exists() and file.read_text() == "up")
    assert file.read_text() == "child None"  # still alive when its parent was asked to end


@pytest.mark.parametrize(("name", "forgiven"), [("trainer", False), ("rollout-0", True)])
async def test_what_is_made_up_for_excuses_workers_only(logs, script, monkeypatch, tmp_path, name, forgiven) -> None:
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 0.05)
    lives = tmp_path / "lives"
    text = "import os, sys; open(sys.argv[1], 'a').write('.'); os.kill(os.getpid(), 9)"
    running = Supervisor([script(name, text, lives)], logs, lambda _: None)
    async with running:
        async with asyncio.timeout(60):
            while not running.failed.is_set() and (not lives.exists() or len(lives.read_text()) < 5):
                running.progressed(further=False)
                await asyncio.sleep(0.01)
        assert running.failed.is_set() != forgiven


async def test_a_process_is_restarted_although_its_output_file_is_gone(logs, script, monkeypatch, tmp_path) -> None:
    """Its folder too, as after a cleaner of log files."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.05)
    folder = tmp_path / "logs"
    text = (
        "import shutil, sys, time\n"
        "open(sys.argv[2], 'a').write('x')\n"
        "shutil.rmtree(sys.argv[1])\n"
        "sys.exit('no reason that anybody can find')\n"
    )
    starts = tmp_path / "starts"
    reported: list[str] = []
    command = script("trainer", text, folder, starts)
    async with Supervisor([command], lambda name: folder / f"{name}.log", reported.append) as running:
        await until(lambda: starts.exists() and len(starts.read_text()) >= 3)
        assert not running.failed.is_set()
    assert "trainer ended (status 1: no reason that anybody can find); starting it again" in reported[0]


async def test_a_process_that_cannot_be_started_ends_the_run_in_words(logs, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.05)
    reported: list[str] = []
    async with Supervisor([Command("trainer", [str(tmp_path / "nothing")])], logs, reported.append) as running:
        await asyncio.wait_for(running.failed.wait(), 60)
    assert reported[0].startswith("trainer could not be started ([Errno 2] No such file")
    assert "trainer ended 2 times: [Errno 2] No such file" in running.failure


async def test_an_error_of_the_supervisor_itself_ends_the_run(logs, script, monkeypatch) -> None:
    def broken(status: int) -> str:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(supervisor, "exit_reason", broken)
    async with Supervisor([script("trainer", "import sys; sys.exit(1)")], logs, lambda _: None) as running:
        await asyncio.wait_for(running.failed.wait(), 60)
    assert running.failure == "trainer is not restarted any more: RuntimeError: a fault of ours"
