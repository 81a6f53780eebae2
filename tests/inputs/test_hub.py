"""The client libraries read their settings at import, so each test asks in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, DataError
from rhymed.inputs.datasets import placed_rows
from tests.inputs.hubserver import Hub, serve

README = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train.parquet}
  - {split: test, path: main/test.parquet}
- config_name: dates
  data_files:
  - {split: train, path: dates/train.parquet}
---
"""
ROWS = [{"question": f"{n} + 1?", "answer": f"One more.\n#### {n + 1}"} for n in range(3)]
ASK = """
import json, sys, time
from rhymed.core.config import Config
from rhymed.core.errors import RhymedError
from rhymed.inputs.models import prepare
from rhymed.inputs.datasets import placed_rows
for ask in json.load(sys.stdin):
    start = time.monotonic()
    try:
        if "model" in ask:
            answer = str(prepare(**ask["model"]))
        else:
            made = Config.model_validate({"data": ask, "rollout": {"prompts_per_step": 1}})
            answer = placed_rows(made)
    except RhymedError as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps([answer, time.monotonic() - start]))
"""


def copy(folder: Path) -> Path:
    """A local copy of a dataset in the hub's shape."""
    (folder / "main").mkdir(parents=True)
    (folder / "dates").mkdir()
    (folder / "README.md").write_text(README)
    parquet.write_table(pa.Table.from_pylist(ROWS), folder / "main" / "train.parquet")
    parquet.write_table(pa.Table.from_pylist(ROWS[:1]), folder / "main" / "test.parquet")
    day = pa.scalar(0, pa.date32()).as_py()
    parquet.write_table(pa.Table.from_pylist([{"question": "q", "day": day}]), folder / "dates" / "train.parquet")
    return folder


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return copy(tmp_path / "gsm8k")


def config(path: Path | str, **data: Any) -> Config:
    return Config.model_validate({"data": {"path": str(path), **data}, "rollout": {"prompts_per_step": 1}})


def test_a_local_copy_of_a_hub_dataset(local: Path) -> None:
    rows = placed_rows(config(local, subset="main"))
    assert rows == [
        (f"{local} main train, row {n}", {"prompt": row["question"], **row}) for n, row in enumerate(ROWS)
    ]
    assert len(placed_rows(config(local, subset="main", split="test"))) == 1
    assert len(placed_rows(config(local, subset="main", split="train[:2]"))) == 2
    assert len(placed_rows(config(local, subset="main", limit=2))) == 2
    assert [row["day"] for _, row in placed_rows(config(local, subset="dates"))] == ["1970-01-01"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "data.subset = '': .*main.*dates"),
        ({"subset": "mian"}, "data.subset = 'mian': .*main.*dates"),
        ({"subset": "main", "split": "val"}, "data.split = 'val': there is no such split; it has train, test"),
        ({"subset": "main", "split": "train[x]"}, r"data.split = 'train\[x\]': "),
        ({"subset": "main", "prompt_column": "q"}, r"main train, row 0: no column 'q' \(data.prompt_column\)"),
    ],
)
def test_mistakes_about_a_dataset(local: Path, data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        placed_rows(config(local, **data))


def test_folders_that_hold_no_dataset(local: Path) -> None:
    (local.parent / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be read: EmptyDatasetError"):
        placed_rows(config(local.parent / "empty"))
    (local / "main" / "train.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read"):
        placed_rows(config(local, subset="main"))
    with pytest.raises(DataError, match=r"no such folder; did you mean .*/gsm8k\?"):
        placed_rows(config(local.parent / "gsm8"))
    with pytest.raises(DataError, match=r"README\.md: this kind of file cannot be read"):
        placed_rows(config(local / "README.md"))


def test_a_slice_that_holds_nothing(local: Path) -> None:
    with pytest.raises(DataError, match="corresponds to no data"):
        placed_rows(config(local, subset="main", split="test[:0]"))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'rhymed\[data\]'"):
        placed_rows(config("openai/gsm8k"))


Asked = list[tuple[Any, float]]


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Asked]:
    """Asks in a process with a hub and a cache of its own."""

    def run(endpoint: str, *what: dict[str, Any], **extra: str) -> Asked:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environ = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "*", **extra}
        done = subprocess.run(
            [sys.executable, "-c", ASK], input=json.dumps(what), env=environ, text=True, stdout=-1, timeout=250
        )
        return [tuple(json.loads(line)) for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "original").mkdir()
    (model / "original" / "params.json").write_text("{}")
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    for name in ("model.safetensors", "tokenizer.json", "pytorch_model.bin"):
        (model / name).write_bytes(b"{}")
    dataset = copy(tmp_path / "dataset")
    with serve({"some/set": dataset, "some/model": model, "some/gated": dataset}, {"some/gated"}) as served:
        yield served


NOWHERE = "http://127.0.0.1:9"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_models_of_the_hub(hub: Hub, ask: Callable[..., Asked]) -> None:
    model = {"model": {"name": "some/model"}}
    found = ask(
        hub.address,
        model,
        {"model": {"name": "some/other"}},
        {"model": {"name": "some/gated"}},
        {"model": {"name": "some/model", "revision": "v9"}},
    )
    folder, *errors = [answer for answer, _ in found]
    assert sorted(file.name for file in Path(folder).iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json"
    ]  # fmt: skip
    refused = "the hub refuses this model, or has none of that name"
    assert f"ConfigError: model.path = 'some/other': {refused} (RepositoryNotFoundError)" in errors[0]
    assert f"{refused} (GatedRepoError): see {hub.address}/some/gated; a private or gated one needs" in errors[1]
    assert f"model.path = 'some/model' at revision 'v9': {refused} (RevisionNotFoundError)" in errors[2]
    (cached, _), (other, waited) = ask(NOWHERE, model, {"model": {"name": "some/other"}})
    assert cached == folder
    assert waited < 30
    assert "not in the local cache, and http://127.0.0.1:9 cannot be reached" in other
    assert "`hf download some/other --local-dir FOLDER`, then set model.path" in other


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_datasets_of_the_hub(hub: Hub, ask: Callable[..., Asked]) -> None:
    some = {"path": "some/set", "subset": "main"}
    (rows, _), (missing, _), (gated, _), (split, _) = ask(
        hub.address, some, some | {"path": "some/others"}, some | {"path": "some/gated"}, some | {"split": "val"}
    )
    assert rows[2] == ["some/set main train, row 2", {"prompt": "2 + 1?", **ROWS[2]}]
    assert "DataError: data.path = 'some/others': the hub refuses this dataset, or has none of that name" in missing
    assert f"(GatedRepoError): see {hub.address}/datasets/some/gated; a private or gated one needs" in gated
    assert "data.split = 'val': there is no such split; it has train, test" in split
    (cached, _), (none, none_s) = ask(NOWHERE, some, some | {"path": "some/others"})
    assert cached == rows
    assert none_s < 30
    assert "not in the local cache, and http://127.0.0.1:9 cannot be reached" in none
    assert "`hf download some/others --repo-type dataset --local-dir FOLDER`, then set data.path" in none
    _, (off, off_s) = ask(hub.address, some, some | {"path": "some/others"}, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in off
    assert off_s < 30
