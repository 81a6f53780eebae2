"""Whatever happens to a run whose samples have tools or an environment, its samples are those of the plain run.

The plain one has a worker of each role, no drafts, and nothing dies. The other has two rollout and two environment
workers, two stores, drafts of its history, moved samples and steps written ahead of their weights, and every kind of
its processes is killed.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from rhymed_store.verify import verify
from tests.packages import needs
from tests.stress.faults import FaultInjector, FaultSchedule, Outcome
from tests.stress.recovery import Throughput
from tests.stress.run import LiveRun
from tests.system.turns import Told, reported, write, write_calling_model

STEPS, FEW, SAMPLES = 10, 4, 16  # of the long test, of the short one, and of each step
BUSY: dict[str, dict[str, Any]] = {
    "environment": {"workers": 2},
    "schedule": {"run_ahead": 1},
}
PLAIN: dict[str, dict[str, Any]] = {"drafts": {"method": "none"}, "schedule": {"policy": "fifo"}}
KILLED = ("store", "broker", "trainer", "rollout", "environment", "tool", "reward", "scorer")
LOSSES = re.compile(
    r"(actor|mismatch_kl)/.*|response_length/(mean|max|clip_ratio)|staleness/max|reward/(mean|std|flat_groups)"
)
"""Metrics of the samples and of the update, as the trainer gives them. The broker's own are of the clock, or sums in
the order of arrival, and are missing where a step was trained while the broker was away."""


def merged(*parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    whole: dict[str, dict[str, Any]] = {}
    for part in parts:
        for section, settings in part.items():
            whole[section] = {**whole.get(section, {}), **settings}
    return whole


def plain(file: Path) -> tuple[LiveRun, dict[str, Told]]:
    with LiveRun(file) as run:
        assert run.wait(400) == 0, run.tail(20)
    return run, reported(run)


class Injector(FaultInjector):
    measures = False

    async def _inject_all(self) -> None:
        """Begins when a step is trained: the processes have something to lose."""
        while self._run.status is None and (self._watch.queues is None or not self._watch.queues.step):
            await asyncio.sleep(0.05)
        await super()._inject_all()


def sieged(file: Path, kills: int, every_s: float) -> tuple[LiveRun, dict[str, Told], Outcome]:
    faults = FaultSchedule(3, kills, every_s, KILLED)
    with LiveRun(file) as run:
        outcome = asyncio.run(Injector(run, faults, Throughput([])).run())
    assert (run.status, outcome.gave_up, outcome.forgotten) == (0, [], 0), run.tail(20)
    return run, reported(run), outcome


def assert_whole(run: LiveRun, steps: int) -> None:
    with open_folder(run.where.folder) as opened:
        found = audit(opened)
    assert (found.wrong, found.dropped, found.steps) == ([], 0, steps), found
    assert verify(run.where.database).sound


def assert_same(one: dict[str, Told], other: dict[str, Told], steps: int) -> None:
    assert len(one) == steps * SAMPLES
    assert one.keys() == other.keys()
    differing = sorted((int(id.split("/")[0]), id) for id in one if one[id] != other[id])
    if differing:
        first = differing[0][1]
        pytest.fail(f"{len(differing)} differ, the first in time:\n{one[first]}\nand\n{other[first]}\nof {differing}")
    several = sum(len(sample.turns) >= 3 for sample in one.values())
    assert several > steps, "samples have several turns"
    assert not [call for sample in one.values() for calls in sample.calls for call in calls if call[1]]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(500)
def test_a_run_with_environments_is_the_same_when_everything_dies(tmp_path: Path) -> None:
    engine = {
        "rollout": {"engine": "trace", "max_response_length": 600},
        "trace": {"tools": ["look"], "mean_length": 15, "step_s": 0.002, "token_s": 0.0001},
        "trainer": {"engine": "trace"},
        "environment": {"factory": f"{tmp_path / 'words.py'}:Box"},
    }
    _, first = plain(write(tmp_path, "plain", FEW, **merged(engine, PLAIN)))
    busy = merged(engine, BUSY, {"rollout": {"workers": 2}, "trace": {"step_s": 0.01, "train_s": 0.3}})
    run, other, outcome = sieged(write(tmp_path, "sieged", FEW, **busy), len(KILLED), 0.5)
    assert len(outcome.faults) >= 5, "the run outlived most of them"
    assert_same(first, other, FEW)
    assert all(sample.earned == sum(sample.turn_rewards) for sample in other.values())
    assert sum(len(sample.token_rewards) > 1 for sample in other.values()) > FEW, "several turns earned something"
    assert_whole(run, FEW)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1500)
@needs("vllm")
def test_a_model_is_trained_on_the_same_turns_when_everything_dies(tmp_path: Path) -> None:
    """Tokens to the last bit. Engines' log-probs are so up to rounding: keys and values of earlier turns were made
    token by token where the turns were written, and all at once where another worker took the sample over. With a
    correction by them the weights would differ in their last bits, and some steps later a token."""
    write_calling_model(tmp_path / "model")
    engine = {
        "model": {"path": str(tmp_path / "model"), "dtype": "float32"},
        "rollout": {"kv_cache_gib": 0.2},
        "trainer": {"correction": "none"},
        "environment": {"factory": f"{tmp_path / 'words.py'}:Box"},
    }
    calm, first = plain(write(tmp_path, "plain", STEPS, **merged(engine, PLAIN)))
    busy = merged(engine, BUSY, {"rollout": {"workers": 2}, "drafts": {"budget": "fixed"}})
    run, other, outcome = sieged(write(tmp_path, "sieged", STEPS, **busy), len(KILLED), 2.0)
    assert outcome.faults, "how many there are before the run ends depends on the machine"
    assert_same(first, other, STEPS)
    assert_whole(run, STEPS)
    assert_same_training(calm.where.folder, run.where.folder)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1500)
@needs("vllm")
def test_what_the_first_turn_earned_is_an_advantage_of_the_first_turn(tmp_path: Path) -> None:
    """Of returns, in a run that is ended and resumed."""
    write_calling_model(tmp_path / "model")
    sections = {
        "model": {"path": str(tmp_path / "model"), "dtype": "float32"},
        "rollout": {"kv_cache_gib": 0.2},
        "trainer": {"algorithm": "reinforce++", "whiten": False, "kl_coef": 0.0, "overlong_filter": False},
        "environment": {"factory": f"{tmp_path / 'words.py'}:First"},
        "reward": {"scorer": "environment"},
        "drafts": {"method": "none"},
    }
    plain(write(tmp_path, "first", 1, **sections))
    run, _ = plain(write(tmp_path, "first", 2, **sections))
    seen = 0
    with run.browse() as browse:
        for prompt in browse.ids():
            for one in browse.responses(prompt):
                first, rest = one.info.turns[0], one.info.turns[1:]
                assert one.info.turn_rewards == [1.0] + [0.0] * (one.info.turn_count - 1)
                assert list(one.token_rewards) == ([(first - 1, 1.0)] if rest else [])
                seen += len(rest) > 1
    assert seen > SAMPLES / 2, "most samples have several turns"


def assert_same_training(plain: Path, other: Path) -> None:
    from safetensors.numpy import load_file

    rows, others = losses(plain), losses(other)
    assert rows.keys() == others.keys()
    for step, row in rows.items():
        assert row == pytest.approx(others[step], rel=1e-4, abs=1e-6), f"losses of step {step}"
    mismatch = [row["mismatch_kl/mean"] for row in [*rows.values(), *others.values()]]
    assert all(0 <= value < 1e-4 for value in mismatch), mismatch
    one, two = (load_file(folder / f"checkpoints/step-{STEPS:06d}/model.safetensors") for folder in (plain, other))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        np.testing.assert_allclose(weight, two[name], rtol=0, atol=1e-4, err_msg=name)


def losses(folder: Path) -> dict[int, dict[str, float]]:
    """By step; of one that was trained again the last."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        row["step"]: {name: value for name, value in row.items() if LOSSES.fullmatch(name)}
        for row in rows
        if "actor/loss" in row
    }
