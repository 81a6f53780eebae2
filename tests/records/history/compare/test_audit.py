"""Runs whose steps were really trained into a checkpoint, good ones and ones that were broken on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.messages import MarkSamples, PutScores, SampleId, SampleInfo, Score
from rhymed.core.run import checkpoint
from rhymed.inputs.prepared import prepare
from rhymed.inputs.rows import prompt_id
from rhymed.records.history.compare.audit import Audit, audit
from rhymed.records.history.folder import open_folder
from rhymed_broker.plan import Plan
from rhymed_store.client import NewSample, StoredSample
from rhymed_workers.trainer import lineage
from rhymed_workers.trainer.lineage import Lineage
from rhymed_workers.trainer.trace import TraceLearner
from tests.store.stores import LocalStore

PROMPTS, PER_STEP, GROUP, STEPS = 5, 2, 3, 6  # two epochs and two prompts more; the seam is inside a step


@dataclass
class Run:
    """Trains its steps with a real learner, and writes what it is told to write, right or wrong."""

    folder: Path
    checkpoint_at: int = STEPS
    skip: set[SampleId] = field(default_factory=set)  # trained, and missing in the store
    drop: dict[SampleId, str] = field(default_factory=dict)
    unwritten: set[SampleId] = field(default_factory=set)  # of the dropped
    rewards: dict[SampleId, float] = field(default_factory=dict)  # in the store, others than trained with
    unmarked: set[SampleId] = field(default_factory=set)
    versions: dict[SampleId, int] = field(default_factory=dict)
    twice: set[SampleId] = field(default_factory=set)
    more: list[SampleId] = field(default_factory=list)  # in the store, and nowhere in the plan
    bend: Callable[[list[str]], list[str]] = lambda lines: lines  # of lineage.jsonl

    def write(self) -> Path:
        self.folder.mkdir(parents=True)
        rows = [{"prompt": f"count to {number}"} for number in range(PROMPTS)]
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = self.config()
        (self.folder / "config.json").write_text(config.model_dump_json())
        self.store = LocalStore(self.folder / "store")
        plan = Plan([prompt_id(row) for row in rows], PER_STEP, GROUP, 3, STEPS, 0)
        learner, kept = TraceLearner(config.trace, config.schedule), Lineage()
        for step in range(STEPS):
            self.step(step, plan.samples(step), learner, kept)
        for id in self.more:
            self.put(id)
        self.store.database.close()
        return self.folder

    def config(self) -> Config:
        return Config.model_validate(
            {
                "run": {"name": self.folder.name, "folder": str(self.folder.parent)},
                "data": {"path": str(self.folder / "rows.jsonl")},
                "rollout": {"engine": "trace", "prompts_per_step": PER_STEP, "group_size": GROUP},
                "trainer": {"engine": "trace", "epochs": 3, "steps": STEPS},
                "trace": {"train_s": 0.0},
            }
        )

    def step(self, step: int, ids: Sequence[SampleId], learner: TraceLearner, kept: Lineage) -> None:
        given = []
        for id in ids:
            sample, reward = self.sample(id)
            if id not in self.skip | self.unwritten:
                self.put(id, sample)
            if id not in self.drop:
                info = SampleInfo(**{name: getattr(sample.info, name) for name in FIELDS}, reward=reward)
                given += [StoredSample(info, sample.tokens)] * (2 if id in self.twice else 1)
        learner.train([one for one in given if step == one.info.versions[0][0]])
        kept.add(step, given, learner.digest())
        trained = [id for id in ids if id not in {*self.drop, *self.skip, *self.unmarked}]
        self.mark(trained, "trained")
        for id in ids:
            if id in self.drop:
                self.mark([id], "dropped", self.drop[id])
        if step + 1 == self.checkpoint_at:

            def fill(folder: Path) -> None:
                learner.save(folder)
                kept.save(folder)
                lines = (folder / lineage.FILE).read_text().splitlines()
                (folder / lineage.FILE).write_text("".join(line + "\n" for line in self.bend(lines)))

            checkpoint.save(self.folder / "checkpoints", step + 1, fill, 2)

    def sample(self, id: SampleId) -> tuple[NewSample, float]:
        draw = np.random.default_rng([max(0, id.step), int(id.prompt, 16), id.index])
        length = int(draw.integers(5, 30)) * (4 if id in self.drop else 1)
        info = SampleInfo(
            id=id,
            prompt_length=3,
            length=length,
            finish_reason="stop",
            versions=[(self.versions.get(id, id.step), length)],
        )
        tokens = draw.integers(0, 1 << 15, length).astype(np.uint32)
        return NewSample(info, np.arange(3, dtype=np.uint32), tokens, np.zeros(length, np.float32)), draw.random()

    def put(self, id: SampleId, sample: NewSample | None = None) -> None:
        local = self.store
        local.put(sample or self.sample(id)[0])
        scores = PutScores(scores=[Score(id=id, reward=self.rewards.get(id, self.sample(id)[1]))])
        local.do(lambda batch: local.writes.put_scores(batch, scores))

    def mark(self, ids: Sequence[SampleId], state: Any, reason: str = "") -> None:
        marks = MarkSamples(samples=list(ids), state=state, reason=reason)
        self.store.do(lambda batch: self.store.writes.mark(batch, marks))


FIELDS = ("id", "prompt_length", "length", "finish_reason", "versions")
ROWS = [prompt_id({"prompt": f"count to {number}"}) for number in range(PROMPTS)]
PLAN = Plan(ROWS, PER_STEP, GROUP, 3, STEPS, 0)
ONE = PLAN.samples(2)[1]  # step 2 holds the seam of two epochs
OTHER = PLAN.samples(4)[0]
OFTEN = next(prompt for prompt in ROWS if sum(prompt in PLAN.prompts(step) for step in range(STEPS)) == 3)
ABSENT = next(step for step in range(STEPS) if OFTEN not in PLAN.prompts(step))


def look(folder: Path) -> Audit:
    with open_folder(folder) as opened:
        return audit(opened)


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    return Run(tmp_path / "calm").write()


def test_a_good_run_is_good(calm: Path) -> None:
    found = look(calm)
    assert found.wrong == []
    assert (found.steps, found.planned, found.prompts) == (STEPS, STEPS, PROMPTS)
    assert (found.trained, found.dropped, found.later) == (STEPS * PER_STEP * GROUP, 0, 0)
    assert found.epochs == pytest.approx(2.4)


def test_steps_beyond_the_checkpoint_may_be_in_any_state(tmp_path: Path) -> None:
    found = look(Run(tmp_path / "t", checkpoint_at=4, unmarked={OTHER}, skip={PLAN.samples(5)[0]}).write())
    assert found.wrong == []
    assert (found.steps, found.later) == (4, 2 * PER_STEP * GROUP - 1)


def test_drops_with_a_reason_are_no_fault(tmp_path: Path) -> None:
    drop = {ONE: "rollout-0: given up after 3 tries", OTHER: "rollout-1: given up after 3 tries"}
    found = look(Run(tmp_path / "t", drop=drop, unwritten={OTHER}).write())
    assert found.wrong == []
    assert found.dropped == 2
    assert list(found.reasons.values()) == [2]


BROKEN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a sample is missing": (
        {"skip": {ONE}},
        [f"sample {ONE} is not in the store", "step 3 was not trained on the samples in the store: 6 samples of"],
    ),
    "a sample was trained twice": (
        {"twice": {ONE}},
        ["step 3 was not trained on the samples in the store: 7 samples of"],
    ),
    "a reward is another": (
        {"rewards": {ONE: 0.125}},
        ["step 3 was not trained on the samples in the store: as many samples and tokens"],
    ),
    "a step is missing in the lineage": (
        {"bend": lambda lines: [*lines[:3], *lines[4:]]},
        ["step 4 is missing in the lineage"],
    ),
    "a step stands twice in the lineage": (
        {"bend": lambda lines: [*lines, lines[1]]},
        ["step 2 is 2 times in the lineage"],
    ),
    "a step too many is in the lineage": (
        {"bend": lambda lines: [*lines, lines[1].replace('"step":1', '"step":6')]},
        ["step 7 is in the lineage, which ends with step 6"],
    ),
    "a sample was not marked": (
        {"unmarked": {ONE}},
        [f"sample {ONE} is scored, though a checkpoint covers its step"],
    ),
    "a drop has no reason": (
        {"drop": {ONE: ""}},
        [f"sample {ONE} was dropped without a reason"],
    ),
    "a sample is stale": (
        {"versions": {ONE: 1}},
        [f"sample {ONE} has tokens of the versions 1 to 1, its step takes 2 to 2"],
    ),
    "a sample is of no step of its prompt": (
        {"more": [SampleId(ABSENT, OFTEN, 0)]},
        ["but not in the plan", f"prompt {OFTEN} was asked 4 times in 2.40 epochs"],
    ),
    "a sample is of a step after the last": (
        {"more": [SampleId(STEPS, ROWS[0], 0)]},
        [f"sample {SampleId(STEPS, ROWS[0], 0)} is in the store, but not in the plan"],
    ),
    "a sample is of an unknown prompt": (
        {"more": [SampleId(0, "f" * 16, 0)]},
        ["but not in the plan"],
    ),
    "a group is too large": (
        {"more": [SampleId(ONE.step, ONE.prompt, GROUP)]},
        ["but not in the plan"],
    ),
    "the lineage is garbage": (
        {"bend": lambda lines: ["garbage"]},
        ["has a lineage that cannot be read", "step 1 is missing"],
    ),
}


@pytest.mark.parametrize(("how", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_broken_is_named(tmp_path: Path, how: dict[str, Any], expected: list[str]) -> None:
    found = look(Run(tmp_path / "t", **how).write())
    for words in expected:
        assert any(words in fault for fault in found.wrong), found.wrong


def test_the_command_tells_in_words_and_by_its_status(calm: Path, tmp_path: Path, rhymed) -> None:
    status, out, _ = rhymed("audit", calm)
    assert status == 0
    assert "every sample is accounted for, exactly once" in out
    status, out, _ = rhymed("audit", Run(tmp_path / "bad", skip={ONE}).write())
    assert status == 1
    assert f"wrong: sample {ONE} is not in the store" in out


def test_a_run_without_a_checkpoint_has_nothing_to_answer_for_yet(tmp_path: Path) -> None:
    found = look(Run(tmp_path / "t", checkpoint_at=-1).write())
    assert (found.steps, found.trained, found.wrong) == (0, 0, [])
    assert found.later == STEPS * PER_STEP * GROUP


def test_rows_that_were_prepared_stand_for_the_dataset(calm: Path) -> None:
    with open_folder(calm) as opened:
        assert opened.config is not None
        prepare(opened.config, calm, opened.config.data)
    (calm / "rows.jsonl").unlink()
    assert look(calm).wrong == []


def test_without_its_dataset_there_is_no_plan(calm: Path, rhymed) -> None:
    (calm / "rows.jsonl").unlink()
    status, _, err = rhymed("audit", calm)
    assert status == 2
    assert "the dataset, from which the plan follows, cannot be read" in err
