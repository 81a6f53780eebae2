"""The best checkpoint is found and kept by held-out rewards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rhymed.core.run.checkpoint import Checkpoint, best, checkpoints_in, damage, folder_of, held_out, keep, save
from rhymed.start.cli import main


def evaluated(run: Path, **rewards: float) -> None:
    """`v3=0.5`: of version 3."""
    with (run / "metrics.jsonl").open("a") as lines:
        for version, reward in rewards.items():
            row = {"step": int(version[1:]), "val/a/reward/mean": reward, "val/b/reward/mean": reward + 0.2}
            lines.write(json.dumps(row) + "\n")


def written(run: Path, step: int) -> None:
    """As the trainer writes it: one is kept, and it is a candidate."""

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(f"weights of {step}")
        (folder / "optimizer").mkdir()
        (folder / "optimizer" / "shard").write_text("moments")

    keep(run, save(run / "checkpoints", step, write, keep=1))


def steps(folder: Path) -> list[int]:
    return [one.step for one in checkpoints_in(folder)]


def test_the_best_survives_rotation_and_the_others_go_when_their_evaluation_is_known(tmp_path: Path) -> None:
    for step, known in ((2, {}), (4, {"v2": 0.3}), (6, {"v4": 0.7}), (8, {}), (10, {"v6": 0.7, "v8": 0.1})):
        evaluated(tmp_path, **known)
        written(tmp_path, step)
        assert steps(tmp_path / "checkpoints") == [step]
        assert step in steps(tmp_path / "best")
    assert steps(tmp_path / "best") == [4, 10], "10 has no evaluation yet; of 4 and 6, which are equal, the first"
    evaluated(tmp_path, v10=float("nan"))
    found = best(tmp_path)
    assert found is not None
    assert found.checkpoint == Checkpoint(4, folder_of(tmp_path / "best", 4))
    assert round(found.reward, 6) == 0.8, "the mean over the datasets"
    assert not damage(found.checkpoint.folder)
    assert (found.checkpoint.folder / "model.safetensors").read_text() == "weights of 4"


def test_what_is_kept_takes_no_room_while_rotation_has_it(tmp_path: Path) -> None:
    written(tmp_path, 2)
    one, other = (folder_of(tmp_path / name, 2) / "model.safetensors" for name in ("checkpoints", "best"))
    assert one.samefile(other)


def test_what_stands_in_its_place_is_replaced(tmp_path: Path) -> None:
    """A part of it, a file, and that of the same step before a resume from an earlier one."""
    target = folder_of(tmp_path / "best", 2)
    for spoil in (
        lambda: (target / "model.safetensors").unlink(),
        lambda: (shutil.rmtree(target), target.write_text("a file")),
        lambda: ((target / "model.safetensors").unlink(), (target / "model.safetensors").write_text("others")),
    ):
        written(tmp_path, 2)
        spoil()
        shutil.rmtree(tmp_path / "checkpoints")
        written(tmp_path, 2)
        assert (target / "model.safetensors").read_text() == "weights of 2"
        assert not damage(target)
        assert steps(tmp_path / "best") == [2]


def test_without_evaluations_there_is_no_best(tmp_path: Path) -> None:
    written(tmp_path, 2)
    assert best(tmp_path) is None
    assert held_out([{"step": 1, "reward/mean": 1.0}, {"step": 2, "val/a/acc/mean@1": 1.0}]) == {}


def test_the_list_names_the_best_also_after_its_rotation(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text("{}")
    written(tmp_path, 2)
    evaluated(tmp_path, v2=0.5)
    written(tmp_path, 4)
    evaluated(tmp_path, v4=0.25)
    assert main(["checkpoint", "list", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 2")
    assert first.endswith("good   best: held-out reward 0.600")
    assert second.endswith("good")
    assert main(["checkpoint", "list", str(tmp_path), "--json"]) == 0
    assert [round(one["held_out"] or 0, 3) for one in json.loads(capsys.readouterr().out)] == [0.6, 0]
    shutil.rmtree(tmp_path / "best")
    assert main(["checkpoint", "export", str(tmp_path), str(tmp_path / "out"), "--step", "best"]) != 0
    assert "trainer.keep_best" in capsys.readouterr().err
