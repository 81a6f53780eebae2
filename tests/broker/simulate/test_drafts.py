"""Drafts in a simulated engine, and the bounds with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rhymed.core.errors import DataError
from rhymed.core.messages import SampleId
from rhymed_broker.scheduler import POLICIES
from rhymed_broker.simulate.cluster import Cluster, bound_s
from rhymed_broker.simulate.engine import SPEEDS, Cost, Drafts, Engine, Entry, read
from rhymed_broker.simulate.workload import Shape, Synthetic
from rhymed_broker.simulate.world import World

TWICE = Drafts([(1, 2.0)], [(1, 1.0), (3, 1.5)], first=1.0)


def test_tokens_per_forward_are_straight_lines_between_measured_points() -> None:
    drafts = Drafts([(1, 3.0), (5, 5.0)], first=1.2)
    assert [drafts.tokens(count, seen=True) for count in (1, 3, 5, 99)] == [3.0, 4.0, 5.0, 5.0]
    assert drafts.tokens(3, seen=False) == 1.2


def test_on_the_measured_cpu_the_speed_is_the_measured_one() -> None:
    drafts = read("cpu")
    for requests, speed in SPEEDS:
        count = int(requests)
        assert drafts.tokens(count, seen=True) / drafts.dearer(count, count) == pytest.approx(speed)
        assert drafts.dearer(count, 0) == 1.0, "samples without history do not draft"


def test_an_engine_drafts_for_samples_with_history_alone() -> None:
    engine = Engine(2, Cost.line(1.0, 0.0), drafts=TWICE)
    engine.add(Entry(SampleId(1, "old", 0), 10, seen=True))
    engine.add(Entry(SampleId(1, "new", 0), 10))
    engine.advance(4.5)  # one of two drafts: a forward takes 1.125 s
    old, new = engine.running.values()
    assert (engine.tokens(old), engine.tokens(new)) == (8, 4)
    assert engine.next_s() == pytest.approx(5 * 1.125)


def test_without_drafts_a_prompt_that_returns_is_no_faster() -> None:
    shape = Shape(prompts=4, prompts_per_step=4, group_size=1, steps=2, mean=100, cap=100, prompt_sigma=9.0)
    cluster = Cluster(workers=1, slots=1, reward_s=0.0, load_s=0.0)
    workload = Synthetic(shape)
    plain = World(workload, cluster, POLICIES["flow"]).run()
    drafted = World(workload, replace(cluster, drafts=Drafts([(1, 2.0)], first=1.0)), POLICIES["flow"]).run()
    tokens = [sum(workload.length(id) for id in workload.plan.samples(step)) for step in (0, 1)]
    assert plain.makespan_s == pytest.approx(sum(tokens) * cluster.cost(1), rel=1e-6)
    assert drafted.makespan_s == pytest.approx((tokens[0] + tokens[1] / 2) * cluster.cost(1), rel=1e-6)


def test_the_bound_counts_drafts_and_slow_engines() -> None:
    shape = Shape(prompts=4, prompts_per_step=4, group_size=2, steps=2, mean=50, cap=100)
    workload = Synthetic(shape)
    cluster = Cluster(workers=2, slots=1, cost=Cost.line(1.0, 0.0), train_s=3.0, reward_s=0.0, load_s=0.5,
                      drafts=Drafts([(1, 2.0)], first=1.0), slow={1: 4.0})  # fmt: skip
    tokens = [sum(workload.length(id) for id in workload.plan.samples(step)) for step in (0, 1)]
    assert bound_s(workload, cluster) == pytest.approx((tokens[0] + tokens[1] / 2) / 1.25 + 3.0)


def test_a_file_of_drafts(tmp_path: Path) -> None:
    path = tmp_path / "drafts.json"
    path.write_text(json.dumps({"tokens": [[1, 2], [8, 4]], "dearer": [[1, 1], [8, 1.5]], "first": 1.1}))
    drafts = read(str(path))
    assert drafts.tokens(8, seen=True) == 4.0
    assert drafts.dearer(8, 8) == 1.5
    for text in ("{}", '{"tokens": [[1, 0.5]]}', "no"):
        path.write_text(text)
        with pytest.raises(DataError):
            read(str(path))
