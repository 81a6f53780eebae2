"""Whole runs in virtual time: the ledger's invariants after every event, whatever happens to the workers."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhymed.core.errors import DataError
from rhymed.core.messages import SampleId
from rhymed.start.cli import main
from rhymed_broker.ledger.actions import Begin, Train
from rhymed_broker.scheduler import POLICIES
from rhymed_broker.simulate.cluster import Cluster, bound_s
from rhymed_broker.simulate.engine import Cost, Engine, Entry
from rhymed_broker.simulate.study import Mode, Oracle, compare
from rhymed_broker.simulate.workload import Recorded, Shape, Synthetic, read_trace
from rhymed_broker.simulate.world import Trainer, World
from tests.broker.ledger.stories import check

SMALL = Shape(prompts=12, prompts_per_step=6, group_size=4, steps=5, mean=300, cap=2000)
FEW = Cluster(workers=3, slots=4, train_s=2.0, reward_s=0.1, load_s=0.2, beat_s=2.0)


class Checked(World):
    """Looks at the ledger after everything that happens, and keeps what was trained."""

    trained: list[SampleId]

    def _act(self) -> None:
        super()._act()
        check(self.ledger)

    def _trained(self, step: int) -> None:
        open_step = self.ledger.samples.open_steps.get(step)
        if open_step is not None:
            self.trained += open_step.samples
        super()._trained(step)


def run(shape: Shape, cluster: Cluster, policy: str, max_staleness: int, run_ahead: int) -> Checked:
    world = Checked(Synthetic(shape), cluster, POLICIES[policy], max_staleness=max_staleness, run_ahead=run_ahead)
    world.trained = []
    world.run()
    return world


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    max_staleness=st.integers(0, 2),
    run_ahead=st.integers(0, 1),
    workers=st.integers(1, 4),
    slots=st.integers(1, 6),
    keep=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
    slow=st.dictionaries(st.integers(0, 3), st.floats(1, 10), max_size=1),
    failures=st.dictionaries(st.floats(0.1, 60), st.integers(0, 3), max_size=2),  # three failures drop a sample
    seed=st.integers(0, 5),
    overlap=st.booleans(),
)
def test_every_sample_ends_once_whatever_happens(
    policy: str,
    max_staleness: int,
    run_ahead: int,
    workers: int,
    slots: int,
    keep: float,
    slow: dict[int, float],
    failures: dict[float, int],
    seed: int,
    overlap: bool,
) -> None:
    """Nothing is dropped either: the ledger drops what breaks the staleness contract."""
    shape = SMALL._replace(seed=seed, steps=3)
    cluster = replace(
        FEW, workers=workers, slots=slots, keep=keep, slow=slow, failures=failures, back_s=5.0, seed=seed,
        overlap=overlap,
    )  # fmt: skip
    world = run(shape, cluster, policy, max_staleness, run_ahead)
    plan = world.workload.plan
    assert world.trained == [id for step in range(3) for id in plan.samples(step)]
    assert world.totals.dropped == 0
    assert len(world.totals.step_s) == 3


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_worker_with_one_slot_takes_the_sum_of_all(policy: str) -> None:
    cluster = replace(FEW, workers=1, slots=1, train_s=0.0, reward_s=0.0, load_s=0.0)
    world = run(SMALL, cluster, policy, 0, 0)
    tokens = sum(world.workload.length(id) for step in range(5) for id in world.workload.plan.samples(step))
    assert world.totals.tokens == tokens
    assert world.now == pytest.approx(tokens * cluster.cost(1), rel=1e-6)


def test_flow_is_near_the_bound_and_the_synchronous_run_is_not() -> None:
    shape = Shape(prompts=64, prompts_per_step=32, group_size=8, steps=6, cap=8000, mean=1000)
    cluster = replace(FEW, workers=4, slots=8)
    workload = Synthetic(shape)
    cluster = replace(cluster, train_s=bound_s(workload, cluster) / 6 / 4)
    sync, flow, oracle = compare(workload, cluster, [Mode("fifo"), Mode("flow", 1), Mode("flow", 1, oracle=True)])
    assert flow.row()["bubble_ratio"] < 0.1 < sync.row()["bubble_ratio"]
    assert flow.totals.makespan_s < 0.75 * sync.totals.makespan_s
    assert flow.totals.makespan_s < 1.1 * oracle.totals.makespan_s
    assert flow.row()["of_bound"] <= 1


def test_training_that_overlaps_hides_behind_the_rollouts() -> None:
    """The longest of a step ends last, so little is left to train then; and nothing else changes."""
    shape = Shape(prompts=64, prompts_per_step=32, group_size=8, steps=6, cap=8000, mean=1000)
    workload, cluster = Synthetic(shape), replace(FEW, workers=4, slots=8)
    cluster = replace(cluster, train_s=bound_s(workload, cluster) / 6 / 4)
    (plain,), (overlap,), (free,) = (
        compare(workload, other, [Mode("flow")])
        for other in (cluster, replace(cluster, overlap=True), replace(cluster, train_s=0.0))
    )
    assert overlap.totals.tokens == plain.totals.tokens
    saved = (plain.totals.makespan_s - overlap.totals.makespan_s) / (plain.totals.makespan_s - free.totals.makespan_s)
    assert 0.7 < saved < 1.01
    for result in (plain, overlap, free):
        assert result.row()["of_bound"] <= 1


def test_the_simulated_trainer_computes_what_it_begins_once() -> None:
    workload = Synthetic(SMALL)
    ids = workload.plan.samples(0)
    tokens = [workload.length(id) for id in ids]
    trainer = Trainer(workload, workload.plan.samples, 10.0)
    trainer.begin(5.0, Begin("trainer", 0, ids[:4]))
    share = sum(tokens[:4]) / sum(tokens)
    assert trainer.train(6.0, Train("trainer", 0, ids, {})) == pytest.approx(
        max(6.0, 5 + 10 * share) + 10 * (1 - share)
    )
    assert trainer.train(100.0, Train("trainer", 1, workload.plan.samples(1), {})) == 110.0


def test_a_slow_worker_costs_in_proportion() -> None:
    """Ten times slower, one of four: flow loses about what that worker would have done."""
    shape = Shape(prompts=64, prompts_per_step=32, group_size=8, steps=4, cap=4000, mean=500)
    calm = run(shape, replace(FEW, workers=4, slots=4), "flow", 1, 0).now
    slow = run(shape, replace(FEW, workers=4, slots=4, slow={0: 10.0}), "flow", 1, 0).now
    assert calm < slow < 2 * calm


class UpsideDown(Oracle):
    """Takes the longest for the shortest, at every look."""

    def expect(self, step: int, prompt: str) -> float:
        return 1e6 / super().expect(step, prompt)


def test_a_forecast_that_is_all_wrong_costs_time_and_no_sample() -> None:
    shape = Shape(prompts=64, prompts_per_step=32, group_size=8, steps=4, cap=4000, mean=500)
    work, cluster = Synthetic(shape), replace(FEW, workers=4, slots=4)
    makespans = []
    for forecast in (Oracle(work), UpsideDown(work)):
        world = Checked(work, cluster, POLICIES["flow"], max_staleness=1, forecast=forecast)
        world.trained = []
        world.run()
        assert sorted(world.trained) == sorted(id for step in range(shape.steps) for id in work.plan.samples(step))
        makespans.append(world.now)
    right, wrong = makespans
    assert right < wrong < 1.3 * right


def test_run_ahead_that_is_all_kept_is_as_good_as_staleness_1() -> None:
    cluster = replace(FEW, keep=1.0, train_s=10.0)
    plain = run(SMALL, cluster, "flow", 0, 0).now
    ahead = run(SMALL, cluster, "flow", 0, 1)
    assert ahead.totals.kept == ahead.totals.ahead > 0
    assert ahead.now < 0.9 * plain


def test_an_engine_shares_its_steps() -> None:
    engine = Engine(2, Cost.line(1.0, 0.5))
    for index, length in enumerate((2, 4, 3)):
        engine.add(Entry(SampleId(0, "p", index), length))
    assert engine.next_s() == pytest.approx(2 * 2.0)
    engine.advance(4.0)
    assert [entry.id.index for entry in engine.finished()] == [0]
    assert engine.next_s() == pytest.approx(4.0 + 2 * 2.0)
    engine.advance(6.0)
    assert engine.tokens(engine.running[SampleId(0, "p", 1)]) == 3
    assert engine.remove(SampleId(0, "p", 1)) is not None
    assert engine.next_s() == pytest.approx(6.0 + 2 * 1.5)


def test_cost_curves(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text("[[1, 0.01], [3, 0.03], [5, 0.03]]")
    assert [Cost.read(file)(samples) for samples in (1, 2, 3, 4, 7)] == pytest.approx([0.01, 0.02, 0.03, 0.03, 0.03])
    for wrong in ("[]", "{", "[[1, 0]]", "[1]"):
        file.write_text(wrong)
        with pytest.raises(DataError):
            Cost.read(file)


def test_recorded_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [{"prompt_id": "0" * 16, "step": step, "length": 5 + step, "index": i} for step in (0, 3) for i in (0, 1)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = Recorded(read_trace(file), 1)
    assert (workload.plan.steps, workload.plan.group_size, workload.cap) == (2, 2, 8)
    assert [workload.length(SampleId(step, "0" * 16, 1)) for step in (0, 1)] == [5, 8]
    file.write_text('{"step": 0, "prompt": "x", "tokens": []}\n')
    with pytest.raises(DataError, match=r"trace\.jsonl:1"):
        read_trace(file)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sim", "--workers", "2", "--slots", "4", "--prompts", "4", "--group", "2", "--steps", "3"]
    assert main([*arguments, "--mean", "200"]) == 0
    assert "flow, staleness 1" in capsys.readouterr().out
    assert main([*arguments, "--mean", "200", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["dropped"] for row in rows] == [0] * len(rows)
    assert len({row["tokens"] for row in rows}) == 1
    assert main([*arguments, "--policy", "flow", "--failures", "1", "--speeds", "0.25,1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["mode"] == "flow, staleness 0"
    makespans = []
    for more in ([], ["--overlap"]):
        assert main([*arguments, "--policy", "flow", "--train-s", "10", "--json", *more]) == 0
        makespans.append(json.loads(capsys.readouterr().out)[0]["makespan_s"])
    assert makespans[1] < makespans[0]


@pytest.mark.parametrize(
    "wrong", ["--workers 0", "--slots -1", "--keep 2", "--keep nan", "--steps 0", "--mean x", "--trace /not/there"]
)
def test_a_mistake_is_reported_in_a_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(["sim", *wrong.split()]) == 2 or "--trace" in wrong
    reported = capsys.readouterr().err
    assert wrong.split()[1] in reported
    assert len(reported.splitlines()) == 1


def test_groups_without_signal_are_replaced_in_virtual_time_too() -> None:
    shape = Shape(prompts=64, prompts_per_step=8, group_size=4, steps=5, mean=100, cap=1000)
    plain = World(Synthetic(shape), Cluster(workers=4, slots=8), POLICIES["flow"]).run()
    assert (plain.filtered, plain.dropped) == (0, 0)
    runs = [
        World(Synthetic(shape), Cluster(workers=workers, slots=8, flat=0.5), POLICIES["flow"], max_staleness=1).run()
        for workers in (2, 5)
    ]
    assert runs[0].filtered == runs[1].filtered > 0
    assert all(run.dropped == 0 and len(run.step_s) == 5 for run in runs)
