"""verl's `@function_tool`: names, schemas, results and errors are verl's, with a stand-in where verl is absent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhymed.core.errors import EnvironmentFailed
from tests.workers.environment.hosting.hosts import hosted

TEXT = '''
from verl.tools.function_tool import function_tool
from verl.tools.schemas import ToolResponse

@function_tool
def search(query: str) -> dict:
    """Searches.

    Args:
        query: What for.
    """
    if query == "nothing":
        raise LookupError("found nothing")
    return {"found": query + "ä"}

@function_tool("price")
async def look_up(name: str) -> tuple:
    """Looks up a price.

    Args:
        name: Of what.
    """
    return ToolResponse(text=f"{name}: 3"), 0.5, {"calls": 1}

@function_tool(schema={"type": "function", "function": {"name": "own", "description": "Own.",
    "parameters": {"type": "object", "properties": {}, "required": []}}})
def own():
    return ToolResponse(image=[1])
'''


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name == "verl" or name.startswith("verl.")]:
        del sys.modules[name]


CLASS = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


class Counter(BaseTool):
    def __init__(self, config, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.open = {}

    async def create(self, instance_id=None, **kwargs):
        instance, response = await super().create(instance_id, **kwargs)
        self.open[instance] = self.config["start"]
        return instance, response

    async def execute(self, instance_id, parameters, **kwargs):
        self.open[instance_id] += parameters["by"]
        text = f"{self.name}: {self.open[instance_id]}, {len(self.open)} open"
        return ToolResponse(text=text), 0.25, {}

    async def release(self, instance_id, **kwargs):
        del self.open[instance_id]
"""
LISTED = """
tools:
  - class_name: "counting_of_test.Counter"
    config: {type: native, start: 3}
    tool_schema:
      type: function
      function:
        name: "count-up"
        description: Counts.
        parameters: {type: object, properties: {by: {type: integer, description: How far.}}, required: [by]}
  - class_name: "some.Server"
    config: {type: mcp}
"""


def test_a_class_of_verl_is_called_as_by_its_agent_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rhymed.start.migrate import migrate
    from rhymed_workers.sessions.calls import Wanted

    (tmp_path / "counting_of_test.py").write_text(CLASS)
    (tmp_path / "list.yaml").write_text(LISTED)
    monkeypatch.syspath_prepend(tmp_path)
    turns = "actor_rollout_ref.rollout.multi_turn"
    found = migrate(
        [f"{turns}.enable=True", f"{turns}.tool_config_path={tmp_path / 'list.yaml'}"], tmp_path / "my.toml"
    )
    module = tmp_path / "my_tools.py"
    assert found.values["environment.tools"] == f"{module}:count_up"
    assert [note.name for note in found.notes if "some.Server" in note.reason] == ["multi_turn.tool_config_path"]
    with hosted(tmp_path, found.modules[module], tools="count_up") as asked:
        assert asked.host.tools[0]["function"]["name"] == "count-up"
        stepped = asked.step(Wanted("count-up", {"by": 4}), Wanted("count-up", {"by": 5}))
        assert [message["content"] for message in stepped.messages] == ["count-up: 7, 1 open", "count-up: 8, 1 open"]
        assert stepped.reward == 0.5


def test_function_tools_are_as_in_verl(tmp_path: Path) -> None:
    with hosted(tmp_path, TEXT, tools="search,look_up,own") as asked:
        names = [tool["function"]["name"] for tool in asked.host.tools]
        assert names == ["search", "price", "own"]
        assert asked.reported("search", query="tea") == '{"found": "teaä"}'
        assert asked.reported("search", query="nothing") == "Error executing tool 'search': found nothing"
        from rhymed_workers.sessions.calls import Wanted

        stepped = asked.step(Wanted("price", {"name": "tea"}), Wanted("search", {"query": "tea"}))
        assert stepped.messages[0]["content"] == "tea: 3"
        assert stepped.reward == 0.5
        with pytest.raises(EnvironmentFailed, match="tool own returned an image or a video"):
            asked.reported("own")
