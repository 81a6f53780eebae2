"""`rhymed history compare`, its second part: which run is better, and whether that is more than noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rhymed.core.messages import EVAL
from rhymed.core.run import provenance
from rhymed.records import better
from rhymed.records.better import Difference, difference, differences
from rhymed.start.cli import main
from rhymed_store.columns import SampleColumns
from tests.records.history.folders import APPLES, PEARS, write_store
from tests.records.several.folders import make

EASE = np.random.default_rng(0).random(64)  # of the prompts: much more different than the runs


def means(by: float, noise: float = 0.02, seed: int = 1) -> dict[tuple[int, int], float]:
    values = EASE + by + np.random.default_rng(seed).normal(0, noise, len(EASE))
    return {(0, prompt): float(value) for prompt, value in enumerate(values)}


def test_a_difference_is_found_where_the_means_alone_show_none() -> None:
    found = difference(means(0.0), means(0.03, seed=2))
    assert found is not None
    assert found.prompts == 64
    assert found.by == pytest.approx(0.03, abs=0.01)
    assert found.error == pytest.approx(0.02 * 2**0.5 / 8, rel=0.3)
    assert found.is_more_than_noise


def test_rewards_of_other_prompts_are_not_judged() -> None:
    other = {(0, 33 + prompt): value for (_, prompt), value in means(0.03, seed=2).items()}  # 31 of 64 are the same
    assert difference(means(0.0), other) is None
    assert difference({}, means(0.0)) is None


def test_noise_alone_is_no_difference_and_few_prompts_do_not_decide() -> None:
    found = difference(means(0.0, 0.2), means(0.0, 0.2, seed=2))
    assert found is not None
    assert not found.is_more_than_noise
    assert not Difference(1.0, 7, 0.01).is_more_than_noise
    assert Difference(1.0, 8, 0.01).is_more_than_noise
    single = difference({(0, 1): 0.5}, {(0, 1): 1.0})
    assert single == Difference(0.5, 1, None)
    assert not single.is_known


def test_rewards_are_means_over_the_samples_of_a_prompt() -> None:
    columns = SampleColumns(
        prompt=np.array([7, 7, 7, 7, 8, 9], np.uint64),
        step=np.array([0, 0, 1, EVAL + 4, EVAL + 4, EVAL + 2]),
        length=np.ones(6, np.int64),
        reward=np.array([0.0, 1.0, 0.3, 0.4, np.nan, 0.9]),
        dropped=np.zeros(6, bool),
        damaged=0,
    )
    assert better.means(columns, 0, 2) == {(0, 7): 0.5, (1, 7): 0.3}
    assert better.means(columns, EVAL + 4, EVAL + 5) == {(0, 7): 0.4}


def test_only_keys_that_differ_are_differences_and_secrets_stay_hidden() -> None:
    one = {"run": {"name": "a"}, "trainer": {"lr": 1, "betas": [1]}, "metrics": {"api_key": "x"}, "old": 1}
    two = {"run": {"name": "b"}, "trainer": {"lr": 2, "betas": [1]}, "metrics": {"api_key": "y"}}
    assert differences(one, two) == {"trainer.lr": [1, 2], "old": [1, None]}
    assert differences(one, one) == {}


def pair(place: Path, **second: object) -> tuple[str, str]:
    """Two runs with stores: steps 0 and 1, and an evaluation after 2 steps."""
    for name, reward in (("one", 0.25), ("two", 0.75)):
        folder = make(place, name, (reward, reward), **(second if name == "two" else {}))
        steps = ((0, APPLES), (1, PEARS), (EVAL + 2, APPLES), (EVAL + 2, PEARS))
        write_store(folder, [(step, prompt, index, [5, 6], reward) for step, prompt in steps for index in (0, 1)])
    return str(place / "one"), str(place / "two")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = pair(tmp_path, trainer__lr=1e-4)
    assert main(["history", "compare", *runs]) == 1  # the same tokens, other rewards
    out = capsys.readouterr().out
    assert out.startswith("one and two: 8 samples in both")
    assert "held-out rows: two +0.500 ± 0.000 (2 prompts): fewer than 8 prompts do not decide" in out
    assert "training rows, newest 20 steps of both: two +0.500 ± 0.000 (2 prompts): fewer than 8" in out
    assert ["reward,", "last", "5", "steps", "0.250", "0.750"] in [line.split() for line in out.splitlines()]
    assert "settings that differ\n  trainer.lr  1e-06  0.0001" in out
    assert main(["history", "compare", *runs, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)["better"]
    assert answer["judged"]["held-out rows"] == {"by": 0.5, "prompts": 2, "error": 0.0, "more_than_noise": False}
    assert answer["numbers"][1]["reward_final"] == 0.75


def test_other_rewards_are_stated_and_other_settings_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = pair(tmp_path, model__path="other", data__path="other.jsonl", reward__scorer="exact")
    assert main(["history", "compare", *runs]) == 1
    out = capsys.readouterr().out
    assert "rewards: not comparable: other rewards (reward.scorer)" in out
    assert {"model.path", "data.path"} <= {line.split()[0] for line in out.splitlines() if line.strip()}
    assert "± " not in out, "nothing is judged"


def test_held_out_rewards_of_other_prompts_and_of_a_changed_function_are_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, prompt in (("one", APPLES), ("two", PEARS)):
        folder = make(tmp_path, name, (0.25, 0.75), reward__workers=len(name) if name == "one" else 1)
        write_store(folder, [(EVAL + 2, prompt, index, [5], 0.5) for index in (0, 1)])
    runs = [str(tmp_path / name) for name in ("one", "two")]
    main(["history", "compare", *runs])
    out = capsys.readouterr().out
    assert "held-out rows: not judged: the runs have other ones" in out
    assert "other rewards" not in out, "more workers score alike"
    for number, run in enumerate(runs):
        files = {"score.py": str(number), "rows.jsonl": "same"}
        start = provenance.Start(t=0.0, command="", folder="", versions={}, machine={}, files=files)
        provenance.note(Path(run), start)
    main(["history", "compare", *runs])
    assert "not comparable: other rewards (the content of score.py)" in capsys.readouterr().out


def test_training_rewards_of_groups_that_were_chosen_by_their_rewards_are_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = pair(tmp_path)
    file = tmp_path / "two" / "metrics.jsonl"
    file.write_text(
        file.read_text().replace('"rollout/tokens":', '"rollout/filtered_groups": 1.0, "rollout/tokens":')
    )
    main(["history", "compare", *runs])
    out = capsys.readouterr().out
    assert "training rows, newest 20 steps of both: not judged: groups without a signal were left out" in out
    assert "held-out rows: two +0.500" in out


def test_runs_without_a_step_have_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        write_store(make(tmp_path, name), [(0, APPLES, 0, [5], None)])
    assert main(["history", "compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert "which is better" not in capsys.readouterr().out
