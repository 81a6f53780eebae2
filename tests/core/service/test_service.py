import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rhymed.core.service
from rhymed.core.errors import EngineError, PeerGone, StoreFull
from rhymed.core.service.retry import retry
from rhymed.core.service.service import EX_UNSTARTED, LagMeter, Service


class Recorder(Service):
    """Records its calls; `fail` names the one that raises."""

    def __init__(self, fail: str = "") -> None:
        super().__init__("recorder")
        self.fail, self.story = fail, list[str]()

    async def open(self) -> None:
        self.story.append("open")
        self._maybe("open")
        self.spawn(self.work(), vital=self.fail != "aside")

    async def work(self) -> None:
        try:
            await asyncio.sleep(0)
            self._maybe("work")
            self._maybe("aside")
            await asyncio.sleep(3600)
        finally:
            self.story.append("work ended")

    async def drain(self) -> None:
        self.story.append("drain")
        self._maybe("drain")

    async def close(self) -> None:
        self.story.append("close")
        self._maybe("close")

    def _maybe(self, place: str) -> None:
        if self.fail == place:
            raise EngineError(f"failed in {place}")


async def test_opens_works_and_closes_after_its_tasks_have_ended() -> None:
    service = Recorder()
    async with service.running():
        assert service.story == ["open"]
        assert not service.stopping
        await asyncio.sleep(0.01)
    assert service.story == ["open", "drain", "work ended", "close"]


async def test_what_cannot_be_handed_back_does_not_keep_it() -> None:
    service = Recorder("drain")
    async with service.running():
        pass
    assert service.story == ["open", "drain", "work ended", "close"]


async def test_handing_back_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Recorder):
        async def drain(self) -> None:
            await asyncio.sleep(3600)

    monkeypatch.setattr(rhymed.core.service.service, "DRAIN_S", 0.05)
    slow = Slow()
    async with slow.running():
        pass
    assert slow.story == ["open", "work ended", "close"]


async def test_a_failing_background_task_ends_it_with_that_error() -> None:
    service = Recorder("work")
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match="failed in work"):
            await service.run()
    assert service.story == ["open", "work ended", "close"]


async def test_a_failing_task_that_is_not_vital_does_not() -> None:
    service = Recorder("aside")
    async with service.running():
        async with asyncio.timeout(60):
            while service.story != ["open", "work ended"]:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not service.stopping


async def test_failing_to_open_still_closes() -> None:
    service = Recorder("open")
    with pytest.raises(EngineError, match="failed in open"):
        async with service.running():
            raise AssertionError("it did not open")
    assert service.story == ["open", "close"]


async def test_a_stop_cuts_off_what_is_still_opening() -> None:
    class Slow(Recorder):
        async def open(self) -> None:
            self.story.append("open")
            try:
                await asyncio.sleep(3600)
            finally:
                self.story.append("cut off")

    slow = Slow()
    running = asyncio.create_task(slow.run())
    async with asyncio.timeout(60):
        while slow.story != ["open"]:
            await asyncio.sleep(0.01)
        slow.stop()
        await running
    assert slow.story == ["open", "cut off", "close"]
    assert not slow.opened.is_set()


async def test_running_tells_how_it_ended() -> None:
    for place in ("work", "close"):
        with pytest.raises(EngineError, match=f"failed in {place}"):
            async with Recorder(place).running():
                await asyncio.sleep(0.05)


async def test_the_error_of_the_body_is_not_hidden() -> None:
    with pytest.raises(PeerGone):
        async with Recorder().running():
            raise PeerGone("in the body")


async def test_stopping_twice_is_stopping() -> None:
    service = Recorder()
    async with service.running():
        service.stop()
        service.stop()
    assert service.story.count("close") == 1


async def test_the_lag_meter_sees_a_blocked_loop() -> None:
    meter = LagMeter()
    assert meter.p99_ms() == 0
    watching = asyncio.create_task(meter.watch())
    await asyncio.sleep(0.06)
    time.sleep(0.3)  # noqa: ASYNC251
    await asyncio.sleep(0.2)
    watching.cancel()
    assert max(meter._late_s) > 0.2
    assert meter.p99_ms() >= 0


async def test_retry_repeats_what_it_may_and_passes_the_rest() -> None:
    outcomes: list[Exception | int] = [PeerGone("a"), StoreFull("b"), 7, EngineError("c")]

    async def attempt() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert await retry(attempt, what="it", on=(PeerGone, StoreFull), pause_s=0.001) == 7
    with pytest.raises(EngineError):
        await retry(attempt, what="it", on=PeerGone, pause_s=0.001)


PROGRAM = """
import asyncio
import sys
import time
from pathlib import Path
from rhymed.core.errors import EngineError, Unstartable
from rhymed.core.service.process import serve
from rhymed.core.service.service import Service

class Probe(Service):
    async def open(self):
        if sys.argv[1] == "fail":
            raise EngineError("no engine")
        if sys.argv[1] == "unstarted":
            raise Unstartable("no operator")
        print("ready", flush=True)
        if sys.argv[1] == "start":
            await asyncio.to_thread(time.sleep, 3600)
    async def close(self):
        print("closed", flush=True)

sys.exit(serve(lambda: Probe("probe"), log_file=Path(sys.argv[2])))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_clean_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "logs" / "probe.log"
    command = [sys.executable, "-c", PROGRAM, "work", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        with contextlib.suppress(BrokenPipeError):
            assert process.communicate(timeout=60)[0] == "closed\n"
    assert process.returncode == 0
    assert log.exists()


def test_a_process_that_still_starts_ends_on_a_signal_though_a_thread_works_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "start", str(tmp_path / "probe.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=60)[0] == "closed\n"
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_process_whose_engine_does_not_start_has_a_status_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "unstarted", str(tmp_path / "probe.log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (EX_UNSTARTED, "rhymed: Unstartable: no operator\n")


def test_a_process_that_fails_says_why_in_one_line_and_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "probe.log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "fail", str(log)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "rhymed: EngineError: no engine\n"
    assert "Traceback" in log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot be told of its parent's end")
def test_who_starts_after_its_supervisor_was_killed_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    start = [
        sys.executable,
        "-c",
        "from rhymed.core.service.process import die_with_parent; die_with_parent(); print('lives')",
    ]
    monkeypatch.setenv("RHYMED_SUPERVISED", "logs")
    monkeypatch.setenv("RHYMED_SUPERVISOR", str(os.getpid()))
    assert subprocess.run(start, capture_output=True, text=True).stdout == "lives\n"
    monkeypatch.setenv("RHYMED_SUPERVISOR", str(os.getppid()))
    done = subprocess.run(start, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "that started this process is gone" in done.stderr
