"""What is exported is a model that others load, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rhymed.core.errors import CheckpointError, ConfigError
from rhymed.core.run import checkpoint
from rhymed.start.cli import main
from rhymed_workers.trainer.export import chosen, export


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path) -> Path:
    """A run's folder with the checkpoints of steps 2 and 4, as a trainer writes them, in two files of weights."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)

    def write(made: Path) -> None:
        model.save_pretrained(made, max_shard_size="100KB")
        (made / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
        (made / "optimizer.state").write_bytes(b"moments")
        (made / "trainer.json").write_text("{}")

    for step in (2, 4):
        checkpoint.save(folder / "checkpoints", step, write, keep=2)
    return folder


def test_the_best_one_is_exported_by_its_name(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": step, "val/sums/reward/mean": reward} for step, reward in ((2, 0.75), (4, 0.5))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for one in checkpoint.checkpoints_in(run / "checkpoints"):
        checkpoint.keep(run, one)
    assert main(["checkpoint", "export", str(run), str(tmp_path / "out"), "--step", "best"]) == 0
    assert "2 steps trained" in capsys.readouterr().out
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exported_checkpoint_loads_as_a_model(run: Path, tmp_path: Path, dtype: str, tiny_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    target = tmp_path / "out" / "model"
    assert main(["checkpoint", "export", str(run), str(target), "--dtype", dtype]) == 0
    names = {file.name for file in target.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= names
    assert not names & {"optimizer.state", "trainer.json", "manifest.json"}
    before = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert loaded.dtype == getattr(torch, dtype)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, before[name].to(tensor.dtype)), name
    modes = {
        file.name: file.stat().st_mode & 0o777
        for made in (run, target)
        for file in made.rglob("*.*")
        if file.is_file()
    }
    assert set(modes.values()) == {(run / "config.json").stat().st_mode & 0o777}, modes
    size = json.loads((target / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    assert size == sum(tensor.nbytes for name, tensor in loaded.state_dict().items() if name != "lm_head.weight") or (
        size == sum(tensor.nbytes for tensor in loaded.state_dict().values())
    )


def test_a_damaged_one_is_passed_over_and_a_named_one_refused(run: Path, tmp_path: Path, capsys) -> None:
    weights = next((run / "checkpoints" / "step-000004").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    assert chosen(run / "checkpoints", None).step == 2
    with pytest.raises(ConfigError, match="no good checkpoint of step 4; there: 2, 4"):
        chosen(run / "checkpoints", 4)
    assert main(["checkpoint", "list", str(run)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("good")
    assert f"DAMAGED: {weights.name} is not what was written" in lines[1]


def test_nothing_is_overwritten_and_nothing_half_written_stays(
    run: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        export(chosen(run / "checkpoints", None), target, "float32")
    assert main(["checkpoint", "export", str(run), str(target)]) == 2
    assert capsys.readouterr().err == f"rhymed: {target} exists already; name a new folder\n"
    target.rmdir()

    def full(*given: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("rhymed_workers.trainer.export._rewrite", full)
    with pytest.raises(CheckpointError, match="no space left"):
        export(chosen(run / "checkpoints", None), target, "float32")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
