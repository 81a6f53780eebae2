"""The dry run over real files, a real tokenizer and the real scoring process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.check.dryrun import full_check, quick_check
from rhymed.check.report import Report
from rhymed.core.config import Config
from rhymed.placement import gpus
from rhymed_workers.sandbox.choose import choose
from tests.workers.trainer.policy.models import build

REWARD = """
def right(completions, answer, **columns):
    return [float(given.strip() == wanted) for given, wanted in zip(completions, answer)]

def constant(completions, **columns):
    return [1.0 for _ in completions]

def broken(completions, **columns):
    raise ValueError("no idea")

def colour(completions, color, **columns):
    return [float(given == wanted) for given, wanted in zip(completions, color)]

def misspelt(completions, kolor, **columns):
    return [1.0 for _ in completions]
"""

Make = Callable[..., Config]


@pytest.fixture
def make(tmp_path: Path, tiny_model: Path) -> Make:
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"say {number}", "answer": str(number)} for number in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def config(function: str = "right", **changes: dict[str, Any]) -> Config:
        sections: dict[str, dict[str, Any]] = {
            "run": {"name": "mine", "folder": str(tmp_path / "runs")},
            "model": {"path": str(tiny_model)},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "rollout": {"prompts_per_step": 2, "group_size": 2, "max_prompt_length": 32, "max_response_length": 8},
            "reward": {"scorer": f"{tmp_path / 'reward.py'}:{function}", "processes": 1},
        }
        for section, values in changes.items():
            sections[section] = sections.get(section, {}) | values
        return Config.model_validate(sections)

    return config


def rows(report: Report, title: str) -> list[tuple[str, str]]:
    return next(section.rows for section in report.sections if section.title.startswith(title))


def test_a_good_configuration_is_reported_whole_and_nothing_is_left_behind(make: Make, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    report = full_check(make())
    assert (report.errors, report.warnings) == ([], [])
    titles = [section.title for section in report.sections]
    assert titles == [
        "batch",
        "algorithm",
        "memory and disk (estimates)",
        "prompts",
        "chats",
        "reward (row 1)",
        "folder and addresses",
    ]
    assert dict(rows(report, "batch"))["sequences"].startswith("packed: a prompt is computed once")
    prompts = dict(rows(report, "prompts"))
    assert prompts["row 1"].endswith("rows.jsonl, line 1, 5 tokens:\nsay 0")
    assert prompts["template"].startswith("no chat template")
    assert rows(report, "reward")[:2] == [("right answer", "0"), ("  reward", "1 (by right)")]
    assert rows(report, "reward")[2:4] == [("nonsense", "banana"), ("  reward", "0 (by right)")]
    called, (label, note) = rows(report, "reward")[4:]
    assert called[0] == "right gets"
    assert called[1].startswith("all samples of a prompt in one call")
    assert label == "isolation"
    assert note.startswith("scoring processes run")
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in str(path)] == before


def test_a_reward_that_is_the_same_for_nonsense_is_a_warning(make: Make) -> None:
    report = full_check(make("constant"))
    assert report.errors == []
    assert "the right answer gets 1, and 'banana' gets 1: such a reward teaches nothing useful" in report.warnings[0]


@pytest.mark.slow
def test_a_reward_that_everything_gets_is_a_warning_without_a_right_answer_too(make: Make, tmp_path: Path) -> None:
    (tmp_path / "unknown.jsonl").write_text("".join(f'{{"prompt": "say {n}", "level": {n}}}\n' for n in range(20)))
    report = full_check(make("constant", data={"path": str(tmp_path / "unknown.jsonl")}))
    assert "'banana' gets 1, and so does an empty answer" in report.warnings[-1]


@pytest.fixture
def colours(tmp_path: Path) -> dict[str, str]:
    """Rows whose right answer is in a column that only the reward knows."""
    file = tmp_path / "colours.jsonl"
    file.write_text("".join(f'{{"prompt": "say {n}", "color": "blue", "level": {n}}}\n' for n in range(4)))
    return {"path": str(file)}


def test_without_a_known_right_answer_nonsense_is_tried(make: Make, colours: dict[str, str]) -> None:
    report = full_check(make("colour", data=colours))
    assert (report.errors, report.warnings) == ([], [])
    shown = rows(report, "reward")
    assert shown[0] == (
        "right answer",
        "not known: the row has no column ground_truth, answer, solution, target, label",
    )
    assert shown[1] == ("no answer", "(nothing)")
    assert shown[3:5] == [("nonsense", "banana"), ("  reward", "0 (by colour)")]


@pytest.mark.parametrize("scorer", ["misspelt", "exact"])
def test_a_row_that_lacks_what_the_reward_needs_must_be_changed_even_if_no_model_was_asked(
    make: Make, colours: dict[str, str], scorer: str
) -> None:
    """What is missing does not depend on the answer, so that of nonsense shows it as well."""
    config = make("misspelt", data=colours) if scorer == "misspelt" else make(data=colours, reward={"scorer": scorer})
    for look in (lambda: full_check(config), lambda: quick_check(config)):
        (error,) = look().errors
        assert error.startswith("reward: no answer to row 1 can be scored")
        assert ("needs column kolor" if scorer == "misspelt" else "the row has no reference answer") in error


def test_a_threshold_that_no_answer_reaches_is_a_warning(make: Make, tmp_path: Path) -> None:
    held_out = tmp_path / "held.jsonl"
    held_out.write_text('{"prompt": "say 99", "answer": "99"}\n')
    settings = {"datasets": [{"name": "held", "path": str(held_out)}], "threshold": 2.0}
    report = full_check(make(eval=settings))
    assert "eval.threshold = 2, but the right answer itself gets 1" in report.warnings[0]


def test_a_reward_that_fails_must_be_changed(make: Make) -> None:
    report = full_check(make("broken"))
    assert len(report.errors) == 1
    assert "scoring 'right answer' of row 1 fails" in report.errors[0]
    assert "no idea" in report.errors[0]


@pytest.mark.skipif(choose("bubblewrap") is not None, reason="bubblewrap works here")
@pytest.mark.parametrize("look", [quick_check, lambda config: full_check(config)])
def test_programs_that_run_without_bubblewrap_are_a_warning(
    make: Make, tmp_path: Path, look: Callable[[Config], Report]
) -> None:
    tests = {"inputs": ["1"], "outputs": ["2"]}
    (tmp_path / "code.jsonl").write_text(
        "".join(f'{{"prompt": "{n}", "tests": {json.dumps(tests)}}}\n' for n in "ab")
    )
    report = look(make(data={"path": str(tmp_path / "code.jsonl")}, reward={"scorer": "code"}))
    assert report.errors == []
    assert "no bubblewrap works here" in report.warnings[0]


def test_several_scorers_are_shown_with_their_weights(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    scorers = [{"scorer": f"{file}:right"}, {"scorer": f"{file}:constant", "weight": 0.5}]
    report = full_check(make(reward={"scorer": "reasoning_gym", "scorers": scorers}))
    assert rows(report, "reward")[1] == ("  reward", "1.5 = right 1 x 1 + constant 1 x 0.5")
    assert report.warnings == []


def test_held_out_prompts_that_are_trained_on_are_counted(make: Make, tmp_path: Path) -> None:
    held_out = tmp_path / "held.jsonl"
    held_out.write_text('{"prompt": "say 1", "answer": "one"}\n{"prompt": "say 99", "answer": "99"}\n')
    report = full_check(make(eval={"datasets": [{"name": "held", "path": str(held_out)}]}))
    assert "eval.datasets held: 1 of 2 held-out prompts are also in the training data" in report.warnings[0]


@pytest.mark.parametrize("look", [quick_check, lambda config: full_check(config)])
def test_all_problems_are_reported_at_once(make: Make, tmp_path: Path, look: Callable[[Config], Report]) -> None:
    config = make(
        "rihgt",
        model={"path": str(tmp_path / "nowhere")},
        data={"path": str(tmp_path / "row.jsonl")},
        net={"broker": "tcp://0.0.0.0:5555"},
        eval={"datasets": [{"name": "held", "path": str(tmp_path / "none.jsonl")}]},
    )
    errors = "\n".join(look(config).errors)
    for part in ("nowhere", "row.jsonl", "none.jsonl", "net.broker = tcp://0.0.0.0:5555"):
        assert part in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("look", [quick_check, lambda config: full_check(config)])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["full_attention", "quadratic"]}, "layers of an unknown kind, quadratic"),
        ({"text_config": {"use_bidirectional_attention": True}}, "attention in both directions"),
    ],
)
def test_a_model_that_the_trainer_cannot_take_is_refused_before_it_is_built(
    make: Make,
    tmp_path: Path,
    tiny_model: Path,
    look: Callable[[Config], Report],
    changes: dict[str, Any],
    words: str,
) -> None:
    shutil.copytree(tiny_model, folder := tmp_path / "odd")
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | changes))
    assert f"model.path: {folder} cannot be trained: it has {words}" in look(make(model={"path": str(folder)})).errors


@pytest.mark.slow
@pytest.mark.thorough
def test_a_model_that_carries_a_state_is_trained_alone_and_its_drafts_rest(
    make: Make, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "here", lambda: None)
    shutil.copytree(tiny_model, folder := tmp_path / "lfm2", ignore=shutil.ignore_patterns("*.safetensors"))
    build("lfm2", vocab_size=264, bos_token_id=None, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    report = full_check(make(model={"path": str(folder)}))
    assert report.errors == []
    assert dict(rows(report, "batch"))["sequences"].startswith("alone: one sequence a pass")
    assert [text.partition(":")[0] for text in report.warnings] == ["drafts are off"]
    report = full_check(make(model={"path": str(folder)}, drafts={"method": "none"}))
    assert report.warnings == []


def test_early_finds_scorers_and_prompts_that_do_not_fit(make: Make) -> None:
    report = quick_check(make("rihgt", rollout={"max_prompt_length": 3}))
    assert "it has: right" in "\n".join(report.errors)
    assert "rows.jsonl, line 1: the prompt has 5 tokens, more than rollout.max_prompt_length = 3" in "\n".join(
        report.errors
    )


def test_early_has_nothing_against_a_good_configuration(make: Make, tmp_path: Path) -> None:
    for engine in ("vllm", "trace"):
        report = quick_check(make(rollout={"engine": engine}))
        assert report.errors == []
    assert not (tmp_path / "runs").exists()
