"""`rhymed bench gpu`: what it would run, where it refuses, and how it goes on where it was stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rhymed.bench.gpu import gpu, machine
from rhymed.bench.gpu.parts import PARTS, Cell, cells
from rhymed.cli import main, parser
from rhymed.config.load import load_config
from rhymed.errors import ConfigError

COUNTED = (
    "import pathlib, sys; file = pathlib.Path(sys.argv[1]); file.write_text(file.read_text() + 'x'); print('[7]')"
)


def python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", *arguments)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces all parts."""

    def replace(*found: Cell) -> None:
        monkeypatch.setattr(gpu, "cells", lambda *arguments, **options: list(found))

    return replace


def test_a_plan_names_every_part_and_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--dry"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{part}: {about}\n" in printed for part, about in PARTS.items())
    assert "in all, by plan: no time was measured on a GPU" in printed
    assert main(["bench", "gpu", "--dry", "--part", "exact", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["commands"]) == 3
    assert found["commands"][2].startswith("VLLM_BATCH_INVARIANT=1 ")


def test_without_a_gpu_it_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine.inventory, "torch_is_for_cpus", lambda: False)
    monkeypatch.setattr(machine.inventory, "here", lambda: None)
    assert main(["bench", "gpu", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "nvidia-smi finds no GPU" in said
    assert "--device cpu runs small versions on processors, --dry lists the commands" in said
    assert not (tmp_path / "out").exists()
    assert main(["bench", "gpu", "--part", "engin"]) == 2
    assert "there is no such part; choose from tests, sampler, engine" in capsys.readouterr().err


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_commands_are_ones_that_rhymed_takes(device: str, quick: bool) -> None:
    found = cells(device, quick=quick)
    assert {cell.part for cell in found} >= set(PARTS) - {"tests", "run"}
    for cell in found:
        if cell.command[2] == "pytest":
            continue
        given = parser().parse_args(cell.command[3:])
        if cell.part == "run":
            settings = load_config(given.config, given.override, {})
            assert settings.run.name.startswith("bench-gpu-")
            assert settings.schedule.colocate == (device == "cuda")


def test_what_has_succeeded_is_not_measured_again(tmp_path: Path, only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    count.write_text("")
    only(
        Cell("sampler", "counted", python(COUNTED, str(count)), 1),
        Cell("engine", "broken", python("raise SystemExit('no such kernel')"), 1),
    )
    for times in (1, 2):
        found = gpu.run(False, device="cpu", out=tmp_path)
        assert (found["failed"], found["good"]) == (["engine, broken"], False)
        assert count.read_text() == "x", times
    (line,) = map(json.loads, (tmp_path / "sampler.jsonl").read_text().splitlines())
    assert (line["status"], line["result"]) == (0, [7])
    assert line["hardware"]["processors"] > 0
    assert "rhymed" in line["versions"]
    broken = [json.loads(text) for text in (tmp_path / "engine.jsonl").read_text().splitlines()]
    assert [one["error"].strip() for one in broken] == ["no such kernel"] * 2
    monkeypatch.setattr(machine, "hardware", lambda device: {"gpus": "another"})
    gpu.run(False, parts=["sampler"], device="cpu", out=tmp_path)
    assert count.read_text() == "xx", "on other hardware it is"


def test_what_takes_too_long_is_ended_and_the_others_go_on(tmp_path: Path, only: Any) -> None:
    only(
        Cell("engine", "endless", python("import time; time.sleep(600)"), 0.005),
        Cell("weights", "next", python("print('[1]')"), 1),
    )
    assert gpu.run(False, device="cpu", out=tmp_path)["failed"] == ["engine, endless"]
    (line,) = map(json.loads, (tmp_path / "engine.jsonl").read_text().splitlines())
    assert line["error"].endswith("ended after 4 times the planned time")
    assert (tmp_path / "weights.jsonl").exists()


def test_a_process_that_a_command_leaves_behind_is_not_waited_for(tmp_path: Path, only: Any) -> None:
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    only(Cell("engine", "leaves one", python(leaves), 0.05))
    found = gpu.run(False, device="cpu", out=tmp_path)
    (line,) = map(json.loads, (tmp_path / "engine.jsonl").read_text().splitlines())
    os.kill(line["result"], signal.SIGKILL)
    assert found["good"]


def test_a_foreign_file_is_left_alone(tmp_path: Path, only: Any) -> None:
    only(Cell("engine", "one", python("print(1)"), 1))
    (tmp_path / "engine.jsonl").write_text("prose\n")
    with pytest.raises(ConfigError, match="choose another folder by --out"):
        gpu.run(False, device="cpu", out=tmp_path)
    assert (tmp_path / "engine.jsonl").read_text() == "prose\n"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_parts_run_small_on_processors(tiny_model: Path, tmp_path: Path) -> None:
    """A training step, and engines with and without drafts that write the same tokens."""
    import shutil

    pytest.importorskip("vllm")
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    settings = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (model / "config.json").write_text(json.dumps(settings))
    found = gpu.run(False, parts=["exact", "trainer"], device="cpu", model=model, out=tmp_path / "out")
    assert found["good"], found
    (line,) = map(json.loads, (tmp_path / "out" / "exact.jsonl").read_text().splitlines())
    ((_, cell),) = line["result"]["model"].items()
    assert cell["history"]["compared_tokens"] > 0
    assert cell["history"]["same_tokens"] == cell["history"]["compared_tokens"]
    (line,) = map(json.loads, (tmp_path / "out" / "trainer.jsonl").read_text().splitlines())
    assert all(one["tokens_per_s"] > 0 for one in line["result"]["cells"])
