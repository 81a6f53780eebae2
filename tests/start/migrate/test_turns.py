"""Tools and environments of scripts, which are carried over unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config.load import load_config
from rhymed.start.migrate import Migration, migrate

SCRIPT = Path(__file__).parent / "sources" / "tools_grpo.py"
OUT, TOOLS, REWARDS = Path("mine.toml"), Path("mine_tools.py"), Path("mine_rewards.py")


def without(tmp_path: Path, line: str) -> Migration:
    """The script's translation without this line."""
    script = tmp_path / "train.py"
    text = SCRIPT.read_text()
    assert line in text
    script.write_text(text.replace(line, ""))
    return migrate([str(script)], OUT)


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "mine_tools.py", "exec"), names)
    return names


def test_tools_are_copied_with_what_they_use(tmp_path: Path) -> None:
    found = without(tmp_path, "    environment_factory=Maze,\n")
    assert found.values["environment.tools"] == "mine_tools.py:compute,later,look_up"
    assert found.values["environment.max_turns"] == 4
    assert set(found.modules) == {TOOLS, REWARDS}
    text = found.modules[TOOLS]
    assert "from trl.experimental.search import search as look_up" in text
    assert "torch" not in text
    assert "class Maze" not in text
    compute = run(text.replace("from trl.experimental.search import search as look_up", "look_up = print"))["compute"]
    assert compute("times", 6, 7) == "42"
    assert "Args:" in compute.__doc__
    load_config(None, (), {}, found.values)


def test_the_class_of_an_environment_is_copied(tmp_path: Path) -> None:
    found = without(tmp_path, "    tools=[compute, later, look_up],\n")
    assert found.values["environment.factory"] == "mine_tools.py:Maze"
    maze = run(found.modules[TOOLS])["Maze"]()
    maze.reset(size=3)
    assert (maze.step(4), maze.get_reward()) == ("4", 1.0)
    load_config(None, (), {}, found.values)


def test_what_is_no_function_of_the_script_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "def add(a: int) -> int: return a + offset\n"
        "def main(offset):\n"
        "    GRPOTrainer('m', print, args=GRPOConfig('out'), tools=[add, lambda x: x])\n"
    )
    found = migrate([str(script)], OUT)
    reasons = [note.reason for note in found.notes if note.name == "tools"]
    assert any("`lambda x: x` is no function of the script" in reason for reason in reasons)
    assert any("mine_tools.py uses offset, which only the script has" in reason for reason in reasons)
    assert found.values["environment.tools"] == "mine_tools.py:add"
    script.write_text(script.read_text().replace("[add, lambda x: x]", "tools_of(args)"))
    (note,) = [note for note in migrate([str(script)], OUT).notes if note.name == "tools"]
    assert "they are `tools_of(args)`" in note.reason
    script.write_text(script.read_text().replace("tools_of(args)", "[]"))
    assert "environment" not in str(migrate([str(script)], OUT).values)


MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"


@pytest.mark.parametrize(
    ("given", "tools", "reason"),
    [
        ("function_tool_path={file}", "{file}:add,later", ""),
        ("function_tool_path=missing.py", None, "missing.py has no function with @function_tool"),
        ("tool_config_path=tools.yaml", None, "tools.yaml cannot be read"),
        ("enable=true", None, "names no tools"),
    ],
)
def test_function_tools_of_verl(tmp_path: Path, given: str, tools: str | None, reason: str) -> None:
    file = tmp_path / "tools.py"
    file.write_text(
        "from verl.tools.function_tool import function_tool\n"
        "@function_tool\ndef add(a): ...\n@function_tool(name='x')\nasync def later(a): ...\ndef other(): ...\n"
    )
    settings = ["enable=true", "max_assistant_turns=5", "format=hermes", given.format(file=file)]
    found = migrate(["data.train_batch_size=8", *(f"{MULTI_TURN}.{one}" for one in settings)], OUT)
    assert found.values.get("environment.tools") == (tools.format(file=file) if tools else None)
    assert found.values["environment.max_turns"] == 5
    assert "environment.parser" not in found.values
    assert any(reason in note.reason for note in found.notes) == bool(reason) or not reason


@pytest.mark.parametrize("enabled", ["enable=true", "enable=false", ""])
def test_classes_of_verl_are_tools_only_where_turns_are_enabled(tmp_path: Path, enabled: str) -> None:
    listed = tmp_path / "tools.yaml"
    listed.write_text(
        "tools:\n- class_name: mine.tools.Add\n  config: {}\n"
        "  tool_schema: {type: function, function: {name: add, parameters: {}}}\n"
    )
    settings = [f"{MULTI_TURN}.{one}" for one in (f"tool_config_path={listed}", enabled) if one]
    found = migrate(["data.train_batch_size=8", *settings], OUT)
    used = enabled == "enable=true"
    assert found.values.get("environment.tools") == (f"{TOOLS}:add" if used else None)
    assert set(found.modules) == ({TOOLS} if used else set())
    reasons = [note.reason for note in found.notes if note.name == "multi_turn.enable"]
    assert reasons == ([] if used else ["it is false: the source's tools are not used"])
