"""What the dry run says of teachers and right answers, over real files, a real tokenizer and a real server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rhymed.check.dryrun import full_check, quick_check
from rhymed.check.report import Report
from rhymed.core.config import Config
from rhymed.inputs.render import load_tokenizer
from rhymed_workers.trainer.teacher import start
from tests.workers.trainer.teacher.servers import TeacherServer, serving


@pytest.fixture
def make(tmp_path: Path, tiny_model: Path) -> Any:
    rows = [{"prompt": f"say {number}", "answer": str(number)} for number in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def config(trainer: dict[str, Any], **sections: dict[str, Any]) -> Config:
        rollout = {"prompts_per_step": 2, "max_prompt_length": 32, "max_response_length": 8}
        tree: dict[str, Any] = {
            "run": {"name": "mine", "folder": str(tmp_path / "runs")},
            "model": {"path": str(tiny_model)},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "rollout": rollout | sections.pop("rollout", {}),
            "reward": {"scorer": "none", "processes": 1},
            "trainer": trainer,
        }
        return Config.model_validate(tree | sections)

    return config


def section(report: Report, title: str) -> dict[str, str]:
    return dict(next(part.rows for part in report.sections if part.title.startswith(title)))


def test_answers_are_shown_as_they_are_learned(make: Any) -> None:
    report = full_check(make({"algorithm": "sft"}))
    assert (report.errors, report.warnings) == ([], [])
    assert section(report, "answers")["row 1"] == "0<eos>"
    assert "2.0 on average, at most 2" in section(report, "answers")["tokens"]


def test_a_row_without_an_answer_is_found_early(make: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "anser": "2"}\n')
    (reported,) = quick_check(make({"algorithm": "sft"})).errors
    assert "line 2: no column 'answer'" in reported
    assert "'anser'" in reported


def test_a_teacher_that_the_trainer_loads_takes_memory(make: Any, tiny_model: Path) -> None:
    report = full_check(make({"algorithm": "opd", "teacher": {"model": str(tiny_model)}}))
    assert report.errors == []
    assert "teacher 387 KiB" in section(report, "memory")["trainer"]


def test_the_policy_as_its_own_teacher_is_shown_with_its_prompt(make: Any) -> None:
    report = full_check(make({"algorithm": "opsd", "teacher": {"demonstration": "answer"}}))
    assert report.errors == []
    reported = section(report, "teacher")
    assert "right response:\n\n0\n" in reported["first prompt"]
    assert "teacher" not in section(report, "memory")["trainer"]  # it takes none


def test_a_prompt_that_the_teacher_cannot_read(make: Any) -> None:
    config = make({"algorithm": "opsd", "teacher": {"system": "x" * 520}})
    (reported,) = quick_check(config).errors
    assert "longest prompt has 527 tokens" in reported
    assert "but it reads 512" in reported


def test_a_teacher_with_another_tokenizer(make: Any, tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    tokens = vocabulary["model"]["vocab"]
    tokens["a"], tokens["b"] = tokens["b"], tokens["a"]
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    (reported,) = quick_check(make({"algorithm": "opd", "teacher": {"model": str(other)}})).errors
    assert "has another tokenizer" in reported


def test_a_teacher_that_is_not_there(make: Any) -> None:
    (reported,) = quick_check(make({"algorithm": "opd", "teacher": {"model": "nothing"}})).errors
    assert "trainer.teacher.model = 'nothing' is neither a folder" in reported


def tokenize(model: Path) -> Any:
    tokenizer = load_tokenizer(Config.model_validate({}).model.model_copy(update={"path": str(model)}), model)
    return lambda text: tokenizer(text, add_special_tokens=False).input_ids


def test_a_server_is_asked_before_anything_starts(make: Any, tiny_model: Path) -> None:
    server = TeacherServer(tokenize(tiny_model))
    with serving(server) as url:
        report = full_check(make({"algorithm": "opd", "teacher": {"url": url}}))
        assert report.errors == []
        assert section(report, "teacher")["longest"].startswith("prompt ")
        named = make({"algorithm": "opd", "teacher": {"url": url, "served": "techer"}})
        assert "has no model 'techer' (trainer.teacher.served), only teacher" in quick_check(named).errors[0]
        server.models.append({"id": "second"})
        several = make({"algorithm": "opd", "teacher": {"url": url}})
        assert "it serves teacher, second: name one of them" in quick_check(several).errors[0]
        server.models = [{"id": "teacher", "max_model_len": 12}]
        assert "but it reads 12" in quick_check(several).errors[0]


@pytest.mark.parametrize("cut", [lambda text: list(text.encode()), lambda text: text.split()])
def test_a_server_with_another_tokenizer_or_none(make: Any, cut: Any) -> None:
    with serving(TeacherServer(lambda text: [len(str(part)) for part in cut(text)])) as url:
        (reported,) = quick_check(make({"algorithm": "opd", "teacher": {"url": url}})).errors
    assert "has another tokenizer than model.path" in reported


def test_a_server_that_does_not_answer(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "START_PATIENCE_S", 0.0)
    with serving(TeacherServer()) as url:
        pass
    (reported,) = quick_check(make({"algorithm": "opd", "teacher": {"url": url}})).errors
    assert reported.startswith(f"teacher {url}/models: Cannot connect")
