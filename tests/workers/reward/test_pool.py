"""Real scoring processes: what a scorer may do to its own, and what the others notice."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import RewardError
from rhymed.core.run import edited, provenance
from rhymed_workers.reward import pool as pool_module
from rhymed_workers.reward import process
from rhymed_workers.reward.child import item
from rhymed_workers.reward.outcome import Outcome
from rhymed_workers.reward.pool import Pool
from rhymed_workers.reward.process import ScoringProcess
from rhymed_workers.sandbox import jailed
from tests.workers.sandbox.processes import in_jails, running, wait_for

SCORER = """
import ctypes, os, signal, subprocess, sys, time

def score(solution_str, ground_truth, extra_info=None):
    match solution_str.split():
        case ["reward", number]: return float(number)
        case ["sleep", seconds]: time.sleep(float(seconds)); return 1.0
        case ["spin"]:
            while True: pass
        case ["exit"]: sys.exit(3)
        case ["os_exit"]: os._exit(7)
        case ["segfault"]: ctypes.string_at(0)
        case ["print"]:
            print("noise" * 1000, flush=True)
            os.write(1, b"raw noise")
            subprocess.run(["echo", "noise of a grandchild"], check=True)
            print(sys.stdin.read())
            return 1.0
        case ["raise"]: raise ValueError("wrong \\udc80 on purpose")
        case ["unprintable"]: raise Unprintable
        case ["late"]: raise TimeoutError("a request of the scorer")
        case ["alarm"]:
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("alarm")))
            signal.alarm(1)
            time.sleep(30)
        case ["leftover"]: signal.setitimer(signal.ITIMER_REAL, 0.2); return 1.0
        case ["hoard"]: return float(len(bytearray(3 << 30)))
        case ["family", mark]:
            subprocess.Popen(["sleep", mark])
            time.sleep(60)
        case ["nan"]: return float("nan")
        case ["killed", file, times]:
            with open(file, "a") as kills: kills.write("x")
            if os.path.getsize(file) <= int(times): os.kill(os.getpid(), signal.SIGKILL)
            return 1.0
    return float(len(solution_str))

class Unprintable(Exception):
    def __str__(self): raise RuntimeError
"""

SLEEP = '        case ["sleep", seconds]: time.sleep(float(seconds)); return 1.0'

ROW = {"prompt": "q", "answer": "4", "big": 10**40}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Config]:
    file = tmp_path / "scorer.py"
    file.write_text(SCORER)

    def config(**reward: Any) -> Config:
        defaults = {"scorer": f"{file}:score", "processes": 1, "timeout_s": 20.0}
        return Config.model_validate({"reward": defaults | reward})

    return config


async def ask(pool: Pool, text: str) -> Outcome:
    return await pool.score(item(text, ROW))


async def crash(pool: Pool, times: int) -> None:
    for _ in range(times):
        await ask(pool, "os_exit")


async def test_rewards_in_any_order(make: Callable[..., Config]) -> None:
    async with Pool(make(processes=2)) as pool:
        outcomes = await asyncio.gather(*(ask(pool, f"reward {number}") for number in range(40)))
    assert [outcome.reward for outcome in outcomes] == [float(number) for number in range(40)]
    assert all(outcome.error is None and outcome.seconds >= 0 for outcome in outcomes)


async def test_long_responses_and_integers_of_any_size_pass(make: Callable[..., Config]) -> None:
    async with Pool(make()) as pool:
        assert (await ask(pool, "\u00e9" * 2_000_000)).reward == 2_000_000


@pytest.mark.parametrize("work", ["sleep 60", "spin"])
async def test_a_hanging_scorer_is_killed_and_replaced(make: Callable[..., Config], work: str) -> None:
    async with Pool(make(timeout_s=2)) as pool:
        outcome = await ask(pool, work)
        assert outcome.timeout
        assert outcome.reward is None
        assert "reward.timeout_s = 2 s and was killed" in str(outcome.error)
        assert (await ask(pool, "reward 2")).reward == 2.0


async def test_what_a_scorer_started_is_killed_with_it(make: Callable[..., Config]) -> None:
    mark = f"60.0{os.getpid()}"
    async with Pool(make(timeout_s=6)) as pool:
        asking = asyncio.create_task(ask(pool, f"family {mark}"))
        assert await wait_for(lambda: running(mark))
        assert (await asking).timeout
        assert await wait_for(lambda: not running(mark))


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("os_exit", "exit status 7"),
        ("segfault", "signal SIGSEGV"),
        ("exit", "SystemExit: 3"),
        ("raise", "ValueError: wrong ? on purpose"),
        ("unprintable", "Unprintable"),
        ("nan", "must be finite"),
        ("hoard", "MemoryError"),
    ],
)
async def test_a_failure_hurts_its_own_sample_only(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, work: str, message: str
) -> None:
    monkeypatch.setattr(jailed, "EXIT_STATUS_S", 60.0)
    async with Pool(make(processes=2, memory_gib=2.0)) as pool:
        outcomes = await asyncio.gather(ask(pool, "reward 1"), ask(pool, work), ask(pool, "reward 3"))
    assert [outcome.reward for outcome in outcomes] == [1.0, None, 3.0]
    assert message in str(outcomes[1].error)
    assert not outcomes[1].timeout


async def test_a_time_limit_of_the_scorer_itself_counts_as_one(make: Callable[..., Config]) -> None:
    async with Pool(make()) as pool:
        assert (await ask(pool, "late")).timeout
        alarmed = await ask(pool, "alarm")  # works in a main thread only
        assert (alarmed.timeout, alarmed.error) == (True, alarmed.error)
        assert "raised TimeoutError: alarm (" in str(alarmed.error)


async def test_what_the_scorer_prints_or_reads_does_not_reach_the_pipes(make: Callable[..., Config]) -> None:
    async with Pool(make()) as pool:
        assert (await ask(pool, "print")).reward == 1.0
        assert (await ask(pool, "reward 2")).reward == 2.0


async def test_an_alarm_left_behind_does_not_hit_the_next(make: Callable[..., Config]) -> None:
    async with Pool(make()) as pool:
        await ask(pool, "leftover")
        await asyncio.sleep(0.5)
        assert (await ask(pool, "reward 2")).reward == 2.0


async def test_a_child_killed_while_idle_costs_no_sample(make: Callable[..., Config]) -> None:
    async with Pool(make()) as pool:
        await ask(pool, "reward 1")
        for victim in in_jails():
            with contextlib.suppress(ProcessLookupError):  # one takes others with it
                os.kill(victim, 9)
        assert (await ask(pool, "reward 2")).reward == 2.0


@pytest.mark.parametrize("fresh", [True, False])
async def test_a_sample_whose_process_somebody_kills_is_scored(
    make: Callable[..., Config], tmp_path: Path, fresh: bool
) -> None:
    async with Pool(make()) as pool:
        if not fresh:
            await ask(pool, "reward 1")
        assert (await ask(pool, f"killed {tmp_path}/two 2")).reward == 1.0
        assert pool.pids


async def test_a_sample_that_kills_every_process_ends_with_an_error(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jailed, "EXIT_STATUS_S", 60.0)
    async with Pool(make()) as pool:
        outcome = await ask(pool, f"killed {tmp_path}/all 99")
        assert (outcome.reward, outcome.timeout) == (None, False)
        assert "the scoring process ended with signal SIGKILL" in str(outcome.error)
        assert (tmp_path / "all").stat().st_size == pool_module.KILLS
        assert (await ask(pool, "reward 2")).reward == 2.0


async def test_what_dies_while_idle_is_waited_for_and_leaves_no_file_open(make: Callable[..., Config]) -> None:
    files = len(os.listdir("/proc/self/fd"))
    async with Pool(make()) as pool:
        await ask(pool, "reward 1")
        seen = set(pool._processes)
        for _ in range(3):
            killed = pool.pids
            for victim in killed:
                os.kill(victim, 9)
            while set(killed) & set(pool.pids):
                await asyncio.sleep(0.01)
            assert (await ask(pool, "reward 2")).reward == 2.0
            seen |= pool._processes
    assert len(seen) > 3
    assert all(one._process.returncode is not None for one in seen)
    assert await wait_for(lambda: len(os.listdir("/proc/self/fd")) <= files), "a pipe stays open"


async def test_a_closed_pool_starts_no_process_for_what_it_was_scoring(make: Callable[..., Config]) -> None:
    async with Pool(make()) as pool:
        await ask(pool, "reward 1")
        scored = asyncio.create_task(ask(pool, "sleep 60"))
        while pool._idle.qsize() > 1 or not pool._slots.locked():
            await asyncio.sleep(0.01)
    assert "the scoring process ended with" in str((await scored).error)
    assert not pool._starting
    assert not in_jails()


async def test_a_cancelled_score_frees_its_place(make: Callable[..., Config]) -> None:
    async with Pool(make()) as pool:
        task = asyncio.create_task(ask(pool, "sleep 60"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await ask(pool, "reward 2")).reward == 2.0


async def test_closing_leaves_no_process(make: Callable[..., Config]) -> None:
    async with Pool(make(processes=2)) as pool:
        await asyncio.gather(*(ask(pool, "reward 1") for _ in range(4)))
        assert len(in_jails()) >= 3 * len(pool.pids) > 0
    assert not in_jails()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def scores(completions): ...", "it has: scores"),
        ("import os; os._exit(5)", "exit status 5"),
        ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
    ],
)
async def test_a_scorer_that_cannot_be_loaded_ends_the_pool_at_once(
    make: Callable[..., Config], tmp_path: Path, source: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(source + "\n")
    with pytest.raises(RewardError, match=message):
        async with Pool(make(scorer=f"{tmp_path}/broken.py:score")):
            pass


async def test_loading_has_a_deadline_of_its_own(make: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)\n")
    with pytest.raises(RewardError, match=r"was not loaded within 0\.5 s"):
        await ScoringProcess.start(make(scorer=f"{tmp_path}/slow.py:score"), deadline_s=0.5)


async def test_loading_slowly_is_no_time_out(make: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(3)\ndef score(completions): return [1.0]\n")
    async with Pool(make(scorer=f"{tmp_path}/slow.py:score", timeout_s=2)) as pool:
        assert (await ask(pool, "reward 1")).reward == 1.0


async def test_a_pool_that_cannot_replace_its_children_says_so(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RESTART_S", 0.01)
    config = make(timeout_s=5.0)
    async with Pool(config) as pool:
        await ask(pool, "reward 1")
        (tmp_path / "scorer.py").write_text("1 / 0\n")
        with pytest.raises(RewardError, match=r"no scoring process can be started: .*ZeroDivisionError"):
            await crash(pool, times=4)


async def test_children_end_with_a_parent_that_is_killed_outright(
    make: Callable[..., Config], tmp_path: Path
) -> None:
    program = (
        "import asyncio, sys\n"
        "from rhymed.core.config import Config\n"
        "from rhymed_workers.reward.child import item\n"
        "from rhymed_workers.reward.pool import Pool\n"
        "async def main():\n"
        "    async with Pool(Config.model_validate_json(sys.argv[1])) as pool:\n"
        "        print((await pool.score(item('reward 1', {'answer': ''}))).reward, flush=True)\n"
        "        await pool.score(item('sleep 60', {'answer': ''}))\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, make().model_dump_json(), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    assert float(await parent.stdout.readline()) == 1.0
    mark = f'"parent": {parent.pid},'
    assert len(running(mark)) >= 3
    parent.kill()
    await parent.wait()
    assert await wait_for(lambda: not running(mark))


async def test_a_start_that_is_cancelled_while_the_child_dies_leaves_nothing(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reported = tmp_path / "mute.py", tmp_path / "told"
    file.write_text(
        f"import os, pathlib, time\npathlib.Path({str(reported)!r}).touch()\nos.closerange(0, 64)\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(jailed, "EXIT_STATUS_S", 60.0)
    starting = asyncio.create_task(ScoringProcess.start(make(scorer=f"{file}:score")))
    assert await wait_for(reported.exists)
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not in_jails()


KILLED_AT_IMPORT = """
import os, pathlib, signal

lives = pathlib.Path(__file__).with_name("lives")
with lives.open("a") as file:
    file.write("x")
if len(lives.read_text()) <= DEATHS:
    os.kill(os.getpid(), signal.SIGABRT)

def score(solution_str, ground_truth, extra_info=None):
    return 1.0
"""


@pytest.mark.parametrize(("deaths", "works"), [(1, True), (99, False)])
async def test_one_that_is_killed_while_it_loads_is_started_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, works: bool
) -> None:
    monkeypatch.setattr(process, "RESTART_S", 0.01)
    file = tmp_path / "scorer.py"
    file.write_text(KILLED_AT_IMPORT.replace("DEATHS", str(deaths)))
    config = Config.model_validate({"reward": {"scorer": f"{file}:score", "processes": 1}})
    if works:
        async with Pool(config) as pool:
            assert (await pool.score(item("text", {"ground_truth": ""}))).reward == 1.0
    else:
        with pytest.raises(RewardError, match="the process ended with signal SIGABRT"):
            async with Pool(config):
                pass
        assert len((tmp_path / "lives").read_text()) == pool_module.MAX_STARTS


async def test_nobody_waits_for_a_scoring_process_whose_start_failed_unexpectedly(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Pool(make()) as pool:
        assert await wait_for(lambda: len(pool.pids) == 2)

        async def broken(config: Config) -> ScoringProcess:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(ScoringProcess, "start", broken)
        async with asyncio.timeout(60):
            with pytest.raises(RewardError, match="no scoring process can be started: a fault of ours"):
                await crash(pool, 10)


RANKS = """
import os, time

def rank(completions, **columns):
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as file:
        file.write(f"{' '.join(completions)}\\n")
    if "raise" in completions:
        raise ValueError("wrong on purpose")
    if "exit" in completions:
        os._exit(7)
    if "hang" in completions:
        time.sleep(60)
    if completions == ["pair"]:
        raise ValueError("one has no spread")
    if "many" in completions and len(completions) > 1:
        raise ValueError("too many")
    return [float(sorted(completions).index(one)) for one in completions]
"""


@pytest.mark.parametrize(
    ("texts", "call", "rewards", "errors", "calls"),
    [
        ("b raise a", "auto", [1.0, None, 0.0], ["wrong on purpose"], ["b raise a", "b", "raise", "a", "b a"]),
        ("b exit a", "auto", [1.0, None, 0.0], ["exit status 7"], ["b exit a", "b", "exit", "exit", "a", "b a"]),
        ("b hang a", "auto", [1.0, None, 0.0], ["reward.timeout_s = 4 s and"], ["b hang a", "b", "hang", "a", "b a"]),
        ("raise exit a", "auto", [None, None, 0.0], ["wrong on purpose", "exit status 7"], None),
        ("pair pair raise", "auto", [None] * 3, ["wrong on purpose"] * 3, None),
        ("many a", "auto", [None, None], ["too many"] * 2, ["many a", "many", "a"]),
        ("b raise a", "group", [None] * 3, ["wrong on purpose"] * 3, ["b raise a"]),
        ("b exit a", "group", [None] * 3, ["exit status 7"] * 3, ["b exit a"]),
    ],
)  # fmt: skip
async def test_of_an_automatic_call_only_the_samples_fail_that_fail_alone(
    make: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: str,
    call: str,
    rewards: list[float | None],
    errors: list[str],
    calls: list[str] | None,
) -> None:
    monkeypatch.setattr(jailed, "EXIT_STATUS_S", 60.0)
    (tmp_path / "ranks.py").write_text(RANKS)
    async with Pool(make(scorer=f"{tmp_path}/ranks.py:rank", call=call, timeout_s=4.0)) as pool:
        outcomes = await pool.score_group([item(text, ROW) for text in texts.split()])
    assert [outcome.reward for outcome in outcomes] == rewards
    found = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert all(error in one for error, one in zip(errors, found, strict=True)), found
    assert calls in (None, (tmp_path / "calls").read_text().splitlines())


async def test_a_response_that_keeps_a_built_in_scorer_busy_to_the_limit_gets_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "BUSY", 0.01)  # other tests may have the processors for most of the time
    towers, scorers = r"\boxed{9^{9^{9^{9}}}}", [{"scorer": "math"}, {"scorer": "format", "args": {"pattern": ".*"}}]
    config = Config.model_validate({"reward": {"scorers": scorers, "processes": 1, "timeout_s": 4}})
    async with Pool(config) as pool:
        outcome = await pool.score(item(towers, {"answer": "5"}))
        assert (outcome.parts, outcome.error, outcome.timeout) == ({"math": 0.0, "format": 1.0}, None, True)
        assert outcome.notes["math/fault"].startswith("math took longer than reward.timeout_s = 4 s")
        assert (await pool.score(item(r"\boxed{5}", {"answer": "5"}))).reward == 2.0


async def test_no_scoring_process_takes_a_scorer_that_was_edited(make: Callable[..., Config], tmp_path: Path) -> None:
    config = make()
    edited.start(tmp_path, provenance.now([], config))
    async with Pool(config, tmp_path) as pool:
        assert (await ask(pool, "reward 3")).reward == 3.0
        (tmp_path / "scorer.py").write_text(SCORER.replace("float(number)", "2 * float(number)"))
        named = r"scorer.py \(reward\) was edited while the run was working"
        with pytest.raises(RewardError, match=named):
            await crash(pool, 8)  # until none is left of those that loaded it before
    with pytest.raises(RewardError, match="was edited"):
        await Pool(config, tmp_path).__aenter__()
    edited.start(tmp_path, provenance.now([], config))
    async with Pool(config, tmp_path) as pool:
        assert (await ask(pool, "reward 3")).reward == 6.0
