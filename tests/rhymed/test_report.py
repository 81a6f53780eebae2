import json
from pathlib import Path

from rhymed import runs
from rhymed.config import Config, Eval, HeldOut, Run, Trainer
from rhymed.report import evaluation, summary, totals


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


def evaluated(version: int, accuracy: float) -> str:
    row = {"val/sums/acc/mean@2": accuracy, "val/sums/prompts": 5.0, "val/sums/dropped": 1.0}
    return json.dumps({"step": version, **row}) + "\n"


def test_evaluations_stand_beside_the_steps_and_change_none_of_their_numbers(tmp_path: Path) -> None:
    config, where = runs.create(Config(run=Run(folder=str(tmp_path))))
    steps = "".join(json.dumps(row(step, 0.5)) + "\n" for step in range(2))
    where.metrics.write_text(evaluated(0, 0.25) + steps + evaluated(2, 0.5))
    text = summary(config, where, 30.0)
    assert "2 steps" in text
    assert "val/sums/acc/mean@2      0.250 (v0) -> 0.500 (v2)" in text


def test_a_run_that_only_evaluates_tells_every_dataset(tmp_path: Path) -> None:
    held_out = [
        HeldOut(name="sums", path="a.jsonl", source="jsonl"),
        HeldOut(name="gone", path="b.jsonl", source="jsonl"),
    ]
    config = Config(
        run=Run(folder=str(tmp_path)), eval=Eval(datasets=held_out, samples=2, every=1), trainer=Trainer(steps=0)
    )
    config, where = runs.create(config)
    where.metrics.write_text(evaluated(0, 0.25))
    text = summary(config, where, 30.0)
    assert "sums: 5 prompts, 2 responses each" in text
    assert "1 samples were dropped" in text
    assert "mean@2                    0.250" in text
    assert "gone: not evaluated" in text
    assert json.loads((where.folder / "eval.json").read_text()) == evaluation(config, where)
