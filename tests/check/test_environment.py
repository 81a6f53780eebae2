"""`rhymed check` of tools and environments: what the policy will know of them, and what is wrong with them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rhymed.check.dryrun import full_check, quick_check
from rhymed.check.report import Report
from rhymed.core.config import Config, Reward
from tests.inputs.templates import GEMMA
from tests.packages import needs
from tests.workers.environment.test_mcp import SERVER
from tests.workers.sessions.test_dialogue import CHATML, STRIPS

MINE = '''
def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    raise AssertionError("a check calls no tools")

add.idempotent = True

class Game:
    def reset(self, answer, **row):
        if answer == "broken":
            raise RuntimeError("no board")
        return f" The board has {answer} fields."

    def move(self, field: int) -> str:
        """Moves.

        Args:
            field: Where to.
        """
        raise AssertionError("a check calls no tools")

def undescribed(a):
    return a
'''


@pytest.fixture
def make(tmp_path: Path, tiny_model: Path) -> Any:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    shape = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(shape))
    (tmp_path / "mine.py").write_text(MINE)

    def config(environment: dict[str, Any], template: str = CHATML, answer: str = "9", limit: int = 2048) -> Config:
        (tmp_path / "template.jinja").write_text(template)
        rows = [{"prompt": f"say {number}", "answer": answer} for number in range(4)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        named = {key: f"{tmp_path}/mine.py:{name}" for key, name in environment.items()}
        tree: dict[str, Any] = {
            "run": {"name": "mine", "folder": str(tmp_path / "runs")},
            "model": {"path": str(folder), "chat_template": str(tmp_path / "template.jinja")},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "environment": named,
            "rollout": {
                "prompts_per_step": 2,
                "group_size": 2,
                "max_prompt_length": limit,
                "max_response_length": 8,
            },
            "reward": {"scorer": "exact", "processes": 1},
        }
        return Config.model_validate(tree)

    return config


def shown(report: Report) -> dict[str, str]:
    return {label: text for section in report.sections for label, text in section.rows}


def test_tools_and_the_first_row_are_shown_as_the_policy_reads_them(make: Any) -> None:
    report = full_check(make({"tools": "add", "factory": "Game"}))
    assert report.errors == []
    rows = shown(report)
    assert rows["add"] == "Adds two numbers. (may be called again)"
    assert rows["move"] == "Moves."
    assert "# Tools" in rows["row 1"]
    assert "say 0 The board has 9 fields." in rows["row 1"]
    assert not any("rewrites" in warning for warning in report.warnings)


@needs("mcp")
def test_tools_of_mcp_servers_are_listed_or_it_is_said_why_not(make: Any, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)

    def with_server(command: str) -> Config:
        tree = make({}).model_dump(mode="json")
        tree["environment"]["mcp"] = [{"command": command, "args": [str(tmp_path / "server.py")]}]
        return Config.model_validate(tree)

    report = full_check(with_server(sys.executable))
    assert report.errors == []
    rows = shown(report)
    assert rows["add"] == "Adds two numbers. (may be called again)"
    assert rows["variable"].endswith(" (may be called again)")
    assert rows["misbehave"].startswith("Does what it should not.")
    (error,) = full_check(with_server("/no/such/server")).errors
    assert "environment.mcp: /no/such/server" in error
    assert "FileNotFoundError" in error


def test_the_words_of_tools_count_in_the_lengths_of_prompts(make: Any) -> None:
    assert quick_check(make({"tools": "add"})).errors == []
    (error,) = quick_check(make({"tools": "add"}, limit=64)).errors
    assert "more than rollout.max_prompt_length = 64" in error


def test_a_template_without_a_system_role_has_tools_in_the_users_words(make: Any) -> None:
    report = full_check(make({"tools": "add"}, template=GEMMA))
    assert report.errors == []
    assert "<start_of_turn>user\n# Tools" in shown(report)["row 1"]


def test_a_template_that_rewrites_turns_is_a_warning(make: Any) -> None:
    report = full_check(make({"tools": "add"}, template=STRIPS))
    assert any("the chat template rewrites earlier turns" in warning for warning in report.warnings)


@pytest.mark.parametrize("check", [quick_check, full_check])
def test_code_that_cannot_be_loaded_is_an_error_before_the_run(make: Any, check: Any) -> None:
    (error,) = check(make({"tools": "undescribed"})).errors
    assert "tool undescribed (" in error
    assert "needs type hints and a docstring" in error


def test_an_environment_that_fails_on_the_first_row_is_an_error(make: Any) -> None:
    (error,) = full_check(make({"factory": "Game"}, answer="broken")).errors
    assert "Game raised RuntimeError: no board" in error


def test_a_program_is_looked_for_and_not_started(make: Any) -> None:
    config = make({})
    for command, error in (
        ("python mine.py", ""),
        ("no-such-program mine.py", "there is no program 'no-such-program'"),
    ):
        named = config.environment.model_copy(update={"command": command})
        report = full_check(config.model_copy(update={"environment": named}))
        assert [error in found for found in report.errors] == ([True] if error else [])
        assert ("RHYMED_ROW" in shown(report).get("prompts", "")) == (not error)


def test_a_reward_of_the_environment_is_not_taken_for_a_constant(make: Any) -> None:
    config = make({"factory": "Game"})
    report = full_check(config.model_copy(update={"reward": Reward(scorer="environment")}))
    assert shown(report)["reward"].startswith("what the environment gives")
    assert not [warning for warning in report.warnings if warning.startswith("reward")]
