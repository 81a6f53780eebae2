"""More and fewer workers while a run lives: by `rhymed scale`, and by its waiting samples."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.run.layout import layout_of
from rhymed.placement.plan import Command, Demand, commands
from rhymed.start.cli import main
from rhymed.start.launch import scaling
from rhymed.start.launch.scaling import Scaling
from rhymed.start.launch.supervisor import Supervisor

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


class Sleeper:
    """Starts processes that sleep in place of those that are named."""

    def __init__(self) -> None:
        from rhymed.placement.local import LocalStarter

        self._local = LocalStarter()

    async def start(self, command: Command, output: Path):  # type: ignore[no-untyped-def]
        return await self._local.start(Command(command.name, SLEEPS), output)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def names(supervisor: Supervisor) -> Sequence[str]:
    return [child.command.name for child in supervisor.children if child.running and child.running.alive]


async def test_workers_are_added_and_sent_away_while_the_run_lives(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scaling, "LOOK_S", 0.05)
    config = Config(run={"folder": str(tmp_path), "name": "r"}, rollout={"engine": "trace", "workers": 2})
    layout, events = layout_of(config), []
    layout.folder.mkdir()
    scaling.ask(layout.folder, {"rollout": 7})  # of an earlier start: forgotten
    running = commands(config, layout.config)[3:]
    async with Supervisor(running, layout.log, events.append, Sleeper()) as supervisor:
        following = asyncio.create_task(Scaling(config, layout, supervisor, events.append).follow())
        await until(lambda: len(names(supervisor)) == 3)
        first = {child.command.name: child.running for child in supervisor.children}
        scaling.ask(layout.folder, {"rollout": 4})
        await until(lambda: names(supervisor).count("rollout-3") == 1 and len(names(supervisor)) == 5)
        scaling.ask(layout.folder, {"rollout": 1, "reward": 0})
        await until(lambda: names(supervisor) == ["rollout-0"])
        assert supervisor.children[0].running is first["rollout-0"], "it was left alone"
        following.cancel()
    assert events[0] == "rollout workers: 2 -> 4"
    assert "rollout workers: 4 -> 1; what the others hold" in events[1]


async def test_a_growth_that_is_refused_takes_no_other_request_with_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scaling, "LOOK_S", 0.05)
    config = Config(run={"folder": str(tmp_path), "name": "r"}, rollout={"engine": "trace", "workers": 2})
    layout, events = layout_of(config), []
    layout.folder.mkdir()

    def too_few(self: Scaling, config: Config) -> tuple[dict[str, dict[str, str]], str]:
        if config.rollout.workers == 2:
            return {}, ""
        scaling.ask(layout.folder, {"reward": 2})  # while the GPUs are counted
        return {}, "there are 2 GPUs"

    monkeypatch.setattr(Scaling, "_devices", too_few)
    running = commands(config, layout.config)[3:]
    async with Supervisor(running, layout.log, events.append, Sleeper()) as supervisor:
        following = asyncio.create_task(Scaling(config, layout, supervisor, events.append).follow())
        scaling.ask(layout.folder, {"rollout": 4})
        await until(lambda: names(supervisor).count("reward-1") == 1)
        assert events[0] == "rollout workers: still 2, not 4: there are 2 GPUs"
        assert scaling.asked(layout.folder) == {"reward": 2}, "the other one may be asked for again"
        following.cancel()


def test_more_workers_are_wanted_at_once_and_fewer_only_after_a_while() -> None:
    placement = {"min": 1, "max": 6, "idle_s": 100.0}
    demand = Demand(Config(rollout={"max_concurrency": 8, "workers": 2}, placement=placement), 0.0)
    assert demand.wanted(0, 1.0) == 2, "those at the start are kept for as long"
    assert demand.wanted(33, 2.0) == 5
    assert demand.wanted(1000, 3.0) == 6
    assert demand.wanted(4, 50.0) == 6, "every step ends with few samples"
    assert demand.wanted(20, 60.0) == 6
    assert demand.wanted(4, 104.0) == 3
    assert demand.wanted(0, 161.0) == 1


@pytest.mark.parametrize(
    ("words", "placement", "why"),
    [
        (["trainer=2"], {}, "write rollout=N or environment=N or reward=N"),
        (["rollout=many"], {}, "write rollout=N"),
        (["rollout=9999"], {}, "from 0 to 1024"),
        (["rollout=2"], {"max": 4}, "between 0 and 4 rollout workers"),
    ],
)
def test_what_cannot_be_wanted_is_refused(words: list[str], placement: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        scaling.parse(words, Config(placement=placement))


def test_only_a_run_that_is_supervised_can_be_scaled(tmp_path: Path, capsys) -> None:
    assert main(["scale", "rollout=2", "--run", str(tmp_path)]) == 2
    assert "is no run's folder" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(Config().model_dump_json())
    assert main(["scale", "rollout=2", "--run", str(tmp_path)]) == 2
    assert "start it with `rhymed run --resume" in capsys.readouterr().err
    assert not scaling.file_of(tmp_path).exists()
