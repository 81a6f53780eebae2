import json
from pathlib import Path

from rhymed import runs
from rhymed.config import Config, Run
from rhymed.report import summary, totals


def row(step: int, reward: float) -> dict[str, float]:
    return {"step": step, "reward/mean": reward, "timing_s/step": 2.0, "rollout/tokens": 10.0}


def test_the_gain_compares_the_first_and_last_five_steps() -> None:
    numbers = totals([row(step, 0.1 * step) for step in range(20)], 60.0)
    assert round(numbers["reward_first"], 6) == 0.2
    assert round(numbers["reward_last"], 6) == 1.7
    assert numbers["tokens"] == 200


def test_the_summary_leaves_a_picture_and_numbers_in_the_folder(tmp_path: Path) -> None:
    config, where = runs.create(Config(run=Run(folder=str(tmp_path))))
    where.metrics.write_text("".join(json.dumps(row(step, 0.5)) + "\n" for step in range(12)))
    text = summary(config, where, 30.0)
    assert "12 steps" in text
    assert (where.folder / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((where.folder / "summary.json").read_text())["reward_gain"] == 0.0


def test_a_run_without_a_step_says_where_to_look(tmp_path: Path) -> None:
    config, where = runs.create(Config(run=Run(folder=str(tmp_path))))
    assert str(where.folder / "logs") in summary(config, where, 1.0)
