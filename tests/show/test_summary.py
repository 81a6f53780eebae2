import json
from pathlib import Path

import pytest

from rhymed.core.config import Config, Eval, HeldOut, Run, Trainer
from rhymed.core.run import folder
from rhymed.core.run.timeline import Event, Writer
from rhymed.show.summary import evaluation, summary


def row(step: int, reward: float) -> dict[str, float]:
    return {"step": step, "reward/mean": reward, "timing_s/step": 2.0, "rollout/tokens": 10.0}


def test_the_summary_leaves_numbers_in_the_folder(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    where.metrics.write_text("".join(json.dumps(row(step, 0.5)) + "\n" for step in range(12)))
    text = summary(config, where)
    assert "12 steps" in text
    numbers = json.loads((where.folder / "summary.json").read_text())
    assert (numbers["reward_gain"], numbers["drafting"], numbers["epochs"]) == (0.0, None, [])
    assert numbers["mismatch_kl"] is None, "no row has it, and NaN is no JSON"
    assert "mismatch_kl -," in text
    assert "drafts" not in text


def test_a_run_on_given_answers_has_a_loss_and_no_reward(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    trainer = config.trainer.model_copy(update={"algorithm": "sft"})
    rows = [row(step, 0.0) | {"actor/loss": 4.0 - step} for step in range(4)]
    where.metrics.write_text("".join(json.dumps(one) + "\n" for one in rows))
    text = summary(config.model_copy(update={"trainer": trainer}), where)
    assert "loss     first 2 steps 3.500   last 2 steps 1.500   change -2.000" in text
    assert "gain" not in text


def test_drafting_is_a_line_and_the_epochs_stand_in_the_numbers(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    drafts = {"forwards": 1000.0, "drafted": 2000.0, "accepted": 1410.0, "timed_s": 44.0, "saved_s": 35.2}
    reported = {f"rollout/spec_{name}": value for name, value in {**drafts, "draft_s": 0.56}.items()}
    rows = [row(0, 0.5) | {"training/epoch": 0.0}, row(1, 0.5) | reported | {"training/epoch": 1.0}]
    where.metrics.write_text("".join(json.dumps(one) + "\n" for one in rows))
    text = summary(config, where)
    line = "drafts   2.41 tokens per forward, 70% accepted, about 1.80x: 35.2 s saved, 0.6 s spent"
    assert line in text.splitlines()
    numbers = json.loads((where.folder / "summary.json").read_text())
    assert numbers["drafting"]["accept_length"] == numbers["epochs"][1]["accept_length"] == 2.41
    assert numbers["epochs"][0]["accept_length"] is None


def test_time_is_that_of_the_timeline_without_pauses(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    where.metrics.write_text(json.dumps(row(0, 0.5)) + "\n")
    times = (0.0, 30.0, 1000.0, 1012.0)  # it was resumed
    writer = Writer(where.folder)
    writer.write([Event(t=1e9 + at, event="trained", step=0) for at in times])
    writer.close()
    for _ in range(2):
        assert "1 steps in 0.7 min" in summary(config, where)
        assert json.loads((where.folder / "summary.json").read_text())["elapsed_s"] == 42.0


@pytest.mark.parametrize(("saved_s", "hint"), [(2.0, True), (40.0, False)])
def test_where_drafts_save_little_the_page_about_that_is_named(tmp_path: Path, saved_s: float, hint: bool) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    reported = {"forwards": 1000.0, "drafted": 2000.0, "accepted": 1600.0, "timed_s": 44.0, "saved_s": saved_s}
    spec = {f"rollout/spec_{name}": value for name, value in reported.items()}
    where.metrics.write_text(json.dumps(row(0, 0.5) | spec) + "\n")
    assert ("docs/how.md" in summary(config, where)) == hint


def test_supervised_training_is_reported_by_its_loss(tmp_path: Path) -> None:
    trained = {"run": {"folder": str(tmp_path)}, "trainer": {"algorithm": "sft"}}
    config, where = folder.create(Config.model_validate(trained))
    where.metrics.write_text(
        "".join(json.dumps(row(at, 0.0) | {"actor/loss": 2.0 - at / 4}) + "\n" for at in range(4))
    )
    text = summary(config, where)
    assert "loss     first 2 steps 1.875   last 2 steps 1.375   change -0.500" in text.splitlines()
    assert not any(line.startswith("reward") for line in text.splitlines())


def test_steps_that_taught_nothing_are_counted_with_the_reason(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    reported = {"actor/grad_norm": 0.0, "actor/rejected": 1.0, "actor/samples": 8.0}
    rows = [
        row(0, 0.5) | {"actor/grad_norm": 0.1, "actor/samples": 8.0},
        row(1, 0.5) | reported,
        row(2, 0.5) | reported,
    ]
    rows.append(row(3, 0.5) | {"actor/skipped_updates": 1.0})
    where.metrics.write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = [line for line in summary(config, where).splitlines() if line.startswith("WARNING")]
    assert found == [
        "WARNING  2 of 4 steps: every token was left out by trainer.correction or trainer.off_policy_mask",
        "WARNING  1 of 4 steps: updates were skipped, because loss or gradient was not finite",
    ]


def test_groups_without_signal_are_a_line(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    reported = {"rollout/filtered_groups": 3.0, "rollout/refilled_groups": 2.0, "rollout/unreplaced_groups": 1.0}
    where.metrics.write_text("".join(json.dumps(row(step, 0.5) | reported) + "\n" for step in range(2)))
    text = summary(config, where)
    line = "groups   6 had no signal and were dropped, 4 replaced them, 2 could not be replaced"
    assert line in text.splitlines()
    numbers = json.loads((where.folder / "summary.json").read_text())
    assert numbers["filtering"] == {"filtered_groups": 6, "refilled_groups": 4, "unreplaced_groups": 2}


def test_a_run_without_a_step_says_where_to_look(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    assert str(where.folder / "logs") in summary(config, where)


def evaluated(version: int, accuracy: float) -> str:
    row = {"val/sums/acc/mean@2": accuracy, "val/sums/prompts": 5.0, "val/sums/dropped": 1.0}
    return json.dumps({"step": version, **row}) + "\n"


def test_evaluations_stand_beside_the_steps_and_change_none_of_their_numbers(tmp_path: Path) -> None:
    config, where = folder.create(Config(run=Run(folder=str(tmp_path))))
    steps = "".join(json.dumps(row(step, 0.5)) + "\n" for step in range(2))
    where.metrics.write_text(evaluated(0, 0.25) + steps + evaluated(2, 0.5))
    text = summary(config, where)
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
    config, where = folder.create(config)
    where.metrics.write_text(evaluated(0, 0.25))
    text = summary(config, where)
    assert "sums: 5 prompts, 2 responses each" in text
    assert "1 samples were dropped" in text
    assert "mean@2                    0.250" in text
    assert "gone: not evaluated" in text
    assert json.loads((where.folder / "eval.json").read_text()) == evaluation(config, where)
