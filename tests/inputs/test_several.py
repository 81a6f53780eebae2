"""Several training datasets: how they are read, checked and told apart from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError, DataError, RunMismatch
from rhymed.core.run.folder import check_same
from rhymed.core.run.layout import layout_of
from rhymed.inputs.datasets import load_rows, place
from rhymed.inputs.prepared import file_of, prepare, rows_of


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        rows = [{"prompt": f"{name} {number}", "answer": "1"} for number in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(tmp_path / f"{name}.jsonl") for name in ("a", "b")]


def config(*datasets: Any, **data: Any) -> Config:
    return Config.model_validate(
        {"data": {"datasets": list(datasets), **data}, "rollout": {"prompts_per_step": 4, "engine": "trace"}}
    )


def test_rows_of_all_datasets_together_make_a_step(files: list[str]) -> None:
    several = config(*({"path": path} for path in files), template="Q: {prompt}")
    assert [row["prompt"] for row in load_rows(several)] == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]
    assert [len(load_rows(several, part)) for part in several.data.parts] == [3, 3]
    assert [part.template for part in several.data.parts] == ["Q: {prompt}"] * 2
    assert place(several.data) == ", ".join(files)
    with pytest.raises(DataError, match=r"3 rows, but a step needs rollout\.prompts_per_step = 4"):
        load_rows(config({"path": files[0]}))


def test_a_row_of_two_datasets_is_refused(files: list[str]) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: another of data\.datasets has the same row"):
        load_rows(config({"path": files[0]}, {"path": files[0]}))


def test_keys_beside_datasets_are_refused(tmp_path: Path, files: list[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[data]\npath = 'x.jsonl'\nlimit = 3\n[[data.datasets]]\npath = '{files[0]}'\n")
    with pytest.raises(ConfigError, match=r"source and path and limit cannot be combined with datasets"):
        load_config(file, (), {})
    file.write_text(f"[[data.datasets]]\npath = '{files[0]}'\nweight = 0\n")
    with pytest.raises(ConfigError, match=r"data\.datasets\.0\.weight = 0: it must be greater than 0"):
        load_config(file, (), {})
    file.write_text(f"[data]\nsampler = 'length'\n[[data.datasets]]\npath = '{files[0]}'\n")
    with pytest.raises(ConfigError, match=r"sampler = 'length' orders one dataset"):
        load_config(file, (), {})
    file.write_text(f"[data]\nsystem = 'a'\n[[data.datasets]]\npath = '{files[0]}'\nsystem = 'b'\n")
    with pytest.raises(ConfigError, match=r"data\.datasets: system must equal data\.system"):
        load_config(file, (), {})


def test_a_saved_configuration_is_read_again(files: list[str]) -> None:
    several = config(*({"path": path, "weight": 2.0} for path in files), system="s")
    assert Config.model_validate_json(several.model_dump_json()) == several


def test_weights_are_a_part_of_the_runs_identity(files: list[str]) -> None:
    first, second = (config({"path": files[0]}, {"path": files[1], "weight": weight}) for weight in (1.0, 2.0))
    with pytest.raises(RunMismatch, match=r"data\.datasets"):
        check_same(first, second, layout_of(first))
    with pytest.raises(RunMismatch, match=r"data\.datasets"):
        check_same(first, Config(), layout_of(first))


def test_datasets_are_prepared_one_by_one(files: list[str], tmp_path: Path) -> None:
    several = config(*({"path": path} for path in files))
    assert [prepare(several, tmp_path, part) for part in several.data.parts] == [3, 3]
    for path in files:
        Path(path).unlink()
    assert [len(rows_of(several, tmp_path, part)) for part in several.data.parts] == [3, 3]
    assert len({file_of(several, tmp_path, part) for part in several.data.parts}) == 2
