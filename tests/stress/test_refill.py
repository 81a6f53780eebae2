"""Groups without signal are replaced alike in real runs: with other workers, and with kills in between."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.twins import compare_runs
from rhymed.core.errors import RhymedError
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from tests.stress.run import LiveRun, Shape

REFILLED = (
    "rollout.max_response_length=300",
    "trace.mean_length=30",
    "trainer.checkpoint_every=2",
    "rollout.save_every_s=0.5",
    "schedule.max_staleness=1",
    "trainer.dynamic_sampling.enabled=true",
    "trainer.dynamic_sampling.tolerance=0.6",  # of rewards between 0 and 1: about half of the groups
)


def rows(run: LiveRun) -> list[dict[str, Any]]:
    """Of the steps, what each says of its groups."""
    lines = [json.loads(line) for line in run.where.metrics.read_text().splitlines()]
    last = {line["step"]: line for line in lines}
    names = ("rollout/filtered_groups", "rollout/refilled_groups", "rollout/reward_mean")
    return [{name: last[step][name] for name in names} for step in sorted(last)]


def stored(run: LiveRun) -> int:
    with contextlib.suppress(RhymedError, OSError), run.browse() as browse:
        return browse.totals().samples
    return 0


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_runs_replace_the_same_groups_though_one_has_more_workers_and_is_killed(tmp_path: Path) -> None:
    calm = LiveRun(Shape(4, 1, 1, prompts=24, override=REFILLED).write(tmp_path / "calm", "run"))
    war = LiveRun(Shape(4, 3, 1, prompts=24, override=REFILLED).write(tmp_path / "war", "run"))
    with calm, war:
        while stored(war) < 24:
            assert war.status is None, war.tail(20)
            time.sleep(0.02)
        war.kill_all()
        war.start(resume=True)
        assert war.wait(250) == 0, war.tail(20)
        assert calm.wait(250) == 0, calm.tail(20)
    for run in (calm, war):
        with open_folder(run.where.folder) as folder:
            found = audit(folder)
        assert found.wrong == []
        assert (found.steps, found.trained, found.dropped) == (4, 64, 0)
        assert found.filtered > 0
    both = compare_runs(calm.where.folder, war.where.folder)
    assert both.wrong == []
    assert "the same, bit for bit, after 4 steps" in both.weights
    assert rows(calm) == rows(war)
    assert sum(row["rollout/refilled_groups"] for row in rows(calm)) > 2
