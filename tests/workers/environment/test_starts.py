"""Processes with environments that do not start: what is at fault, and which samples continue."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import pytest

from rhymed.core.errors import HOPELESS, EnvironmentDown, EnvironmentFailed, EnvironmentUnusable
from rhymed_workers.environment import pool as pool_module
from rhymed_workers.environment.pool import Environments
from rhymed_workers.sandbox import jailed
from tests.workers.environment.pools import CHAT, Make, ask, maker

GAME = '''
class Game:
    def reset(self, **row):
        pass

    def wait(self) -> str:
        """Waits."""
        return "waited"
'''
ONCE = """
import os, pathlib
mark = pathlib.Path(__file__).with_suffix(".starts")
mark.write_text(str(int(mark.read_text()) + 1) if mark.exists() else "1")
if mark.read_text() != "1":
    {then}
"""
RAISES, DIES = "raise RuntimeError('only once')", "os.kill(os.getpid(), 9)"


def once(folder: Path, then: str) -> Make:
    """Environments that load once."""
    return maker(folder, ONCE.format(then=then) + GAME)


def starts(folder: Path) -> int:
    return int((folder / "mine.starts").read_text())


async def all_ended(pool: Environments) -> None:
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    for process in pool._processes:
        await process._process.wait()


async def test_a_killed_process_that_is_slow_to_end_is_no_fault_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jailed, "EXIT_STATUS_S", 0.0)
    with pytest.raises(EnvironmentFailed, match="the process ended with") as raised:
        async with maker(tmp_path, "import os\nos.kill(os.getpid(), 9)\n")(tools="add"):
            pass
    assert not isinstance(raised.value, HOPELESS)


async def test_samples_go_on_where_they_can_if_another_process_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "AGAIN_S", math.inf)
    async with once(tmp_path, RAISES)(factory="Game", processes=2) as pool:
        for name in ("a", "b", "c"):
            await pool.open(name, {}, CHAT)
            assert (await ask(pool, "wait", name)).messages[0]["content"] == "waited"
        assert len(pool.pids) == 1
        assert starts(tmp_path) == 2, "it is not tried again for every sample"


@pytest.mark.parametrize(("then", "kind"), [(RAISES, EnvironmentUnusable), (DIES, EnvironmentDown)])
async def test_where_none_is_left_and_none_starts_it_is_said(
    tmp_path: Path, then: str, kind: type[EnvironmentFailed]
) -> None:
    async with once(tmp_path, then)(factory="Game") as pool:
        await all_ended(pool)
        with pytest.raises(kind):
            await pool.open("a", {}, CHAT)
