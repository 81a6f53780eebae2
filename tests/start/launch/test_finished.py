"""A finished run is not started again; one that lacks anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.run import checkpoint, folder
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.timeline import Event, Kind, Writer
from rhymed.start.cli import main
from rhymed.start.launch.resumable import finished


def event(layout: RunLayout, kind: Kind, at: float) -> None:
    writer = Writer(layout.folder)
    writer.write([Event(t=at, event=kind)])
    writer.close()


@pytest.fixture
def run(tmp_path: Path) -> tuple[Config, RunLayout]:
    """Finished: 8 prompts, 2 per step, 2 epochs are 8 steps, evaluated at the end."""
    for name, count in (("rows", 8), ("held", 2)):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"prompt": f"{name} {n}"}) + "\n" for n in range(count))
        )
    sections: dict[str, Any] = {
        "run": {"name": "mine", "folder": str(tmp_path / "runs")},
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "rollout": {"prompts_per_step": 2},
        "trainer": {"epochs": 2},
        "eval": {"datasets": [{"name": "held", "path": str(tmp_path / "held.jsonl")}]},
    }
    config, layout = folder.create(Config.model_validate(sections))
    checkpoint.save(layout.checkpoints, 8, lambda made: (made / "weights").write_text("w") and None, keep=1)
    layout.metrics.write_text('{"step": 7, "reward/mean": 1.0}\n{"step": 8, "val/held/prompts": 2.0}\n')
    event(layout, "begun", 1.0)
    event(layout, "finished", 2.0)
    return config, layout


def trained(config: Config, **trainer: Any) -> Config:
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)})


def test_a_finished_run_is_named_so_with_the_way_to_train_further(run: tuple[Config, RunLayout]) -> None:
    config, layout = run
    again = f"rhymed run --resume {layout.folder}"
    assert finished(config, layout) == (
        f"finished: all 8 steps are trained; to train further: {again} -o trainer.epochs=N"
    )
    assert finished(trained(config, steps=4), layout).endswith(f"{again} -o trainer.steps=N")
    assert finished(trained(config, epochs=3), layout) == "", "12 steps are wanted"


@pytest.mark.parametrize("lacks", ["end", "checkpoint", "evaluation"])
def test_a_run_that_lacks_something_is_resumed(run: tuple[Config, RunLayout], lacks: str) -> None:
    config, layout = run
    if lacks == "end":
        event(layout, "begun", 3.0)
    elif lacks == "checkpoint":
        (layout.checkpoints / "step-000008" / "weights").write_text("damaged")
    else:
        layout.metrics.write_text('{"step": 7, "reward/mean": 1.0}\n{"step": 6, "val/held/prompts": 2.0}\n')
    assert finished(config, layout) == ""


def test_resuming_a_finished_run_changes_nothing(
    run: tuple[Config, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    _, layout = run
    before = {path: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()}
    assert main(["run", "--resume", str(layout.folder)]) == 0
    out, err = capsys.readouterr()
    assert (out.startswith("finished: all 8 steps are trained"), err) == (True, "")
    assert {path: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()} == before
