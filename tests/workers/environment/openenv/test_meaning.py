"""Schemas, observations and tools."""

from typing import Any

import pytest

from rhymed.core.errors import EnvironmentFailed
from rhymed_workers.environment.openenv import action_of, observed, tools_of
from tests.workers.environment.openenv.servers import ADD, GUESS, MCP, SAY


def test_an_action_is_a_text_a_tool_or_calls_of_tools() -> None:
    assert action_of(SAY, "auto")[:2] == ("text", "message")
    assert action_of(MCP, "auto").kind == "mcp"
    assert action_of({"properties": {"metadata": {}}}, "auto").kind == "mcp"
    tool = action_of(GUESS, "auto")
    assert tool[:2] == ("tool", "GuessAction")
    assert tool.schema["function"] == {
        "name": "GuessAction",
        "description": "Guesses the number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "description": "1 to 9"}},
            "required": ["number"],
        },
    }
    assert action_of(SAY, "tool").kind == "tool"
    with pytest.raises(EnvironmentFailed, match="needs an action with one text, and this one has number"):
        action_of(GUESS, "text")
    with pytest.raises(EnvironmentFailed, match="no schema of actions"):
        action_of("nothing", "auto")


def test_a_choice_of_words_is_a_tool() -> None:
    move = {"properties": {"move": {"type": "string", "enum": ["left", "right"]}}, "required": ["move"]}
    assert action_of(move, "auto")[:2] == ("tool", "act")


def test_a_text_may_have_a_default() -> None:
    assert action_of({"properties": {"message": {"type": "string", "default": ""}}}, "auto")[:2] == (
        "text",
        "message",
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"hint": "Higher."}, "Higher."),
        ({"hint": "Higher.", "metadata": {"a": 1}, "nothing": None}, "Higher."),
        ({"board": [[1, 2]]}, "[[1, 2]]"),
        ({"hint": "a", "left": 0}, '{"hint": "a", "left": 0}'),
        ({}, ""),
        ({"tool_name": "add", "result": {"content": [{"type": "text", "text": "4"}], "data": 4}}, "4"),
        ({"tool_name": "add", "result": {"content": [{"text": "a"}, {"text": "b"}], "data": None}}, "a\nb"),
        ({"tool_name": "add", "result": {"x": 1}, "error": None}, '{"x": 1}'),
    ],
)
def test_observations_are_text(answer: dict[str, Any], text: str) -> None:
    assert observed({"observation": answer, "reward": True, "done": False}) == (text, False, 1.0, "")


def test_failed_calls_say_why() -> None:
    error = {"error_type": "timeout", "message": ""}
    assert observed({"observation": {"tool_name": "add", "result": None, "error": error}}).failed == "timeout"
    result = {"content": [{"text": "no such row"}], "is_error": True}
    assert observed({"observation": {"tool_name": "add", "result": result}}).failed == "no such row"


@pytest.mark.parametrize("answer", [{}, {"observation": 1}, {"observation": {}, "reward": "much"}])
def test_what_is_no_observation_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentFailed):
        observed(answer)


def test_tools_have_schemas() -> None:
    (tool,) = tools_of({"observation": {"tools": [ADD]}})
    assert (tool["function"]["name"], tool["function"]["parameters"]) == ("add", ADD["input_schema"])
    with pytest.raises(EnvironmentFailed, match="has no tools"):
        tools_of({"observation": {}})
