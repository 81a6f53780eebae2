from pathlib import Path

import pytest

from rhymed.start.bench import spec
from rhymed.start.bench.spec import BenchWorkload, workloads


@pytest.mark.parametrize("absolute", [False, True])
def test_the_policy_has_its_own_questions_however_its_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    spec.OUT.mkdir(parents=True)
    (spec.OUT / "train.jsonl").touch()
    monkeypatch.setattr(spec, "workload_of", lambda name, config, longest=0: BenchWorkload(name, Path(), [], longest))
    given = spec.OUT.resolve() if absolute else spec.OUT
    assert [one.name for one in workloads(given)] == ["bench policy"]
    assert [one.name for one in workloads(tmp_path / "other")] == ["other"]
    assert len([*workloads()]) == 2
