from pathlib import Path

import pytest

from rhymed.bench.policy import workload
from rhymed.bench.policy.workload import BenchWorkload, workloads


@pytest.mark.parametrize("absolute", [False, True])
def test_the_policy_has_its_own_questions_however_its_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    workload.OUT.mkdir(parents=True)
    (workload.OUT / "train.jsonl").touch()
    monkeypatch.setattr(
        workload, "_workload", lambda name, config, longest=0: BenchWorkload(name, Path(), [], longest)
    )
    given = workload.OUT.resolve() if absolute else workload.OUT
    assert [one.name for one in workloads(given)] == ["bench policy"]
    assert [one.name for one in workloads(tmp_path / "other")] == ["other"]
    assert len([*workloads()]) == 2
