"""verl's `@function_tool`: names, schemas, results and errors are verl's, with a stand-in where verl is absent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhymed.errors import EnvironmentFailed
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


def test_function_tools_are_as_in_verl(tmp_path: Path) -> None:
    with hosted(tmp_path, TEXT, tools="search,look_up,own") as asked:
        names = [tool["function"]["name"] for tool in asked.host.tools]
        assert names == ["search", "price", "own"]
        assert asked.told("search", query="tea") == '{"found": "teaä"}'
        assert asked.told("search", query="nothing") == "Error executing tool 'search': found nothing"
        from rhymed_workers.environment.protocol import Wanted

        stepped = asked.step(Wanted("price", {"name": "tea"}), Wanted("search", {"query": "tea"}))
        assert stepped.messages[0]["content"] == "tea: 3"
        assert stepped.reward == 0.5
        with pytest.raises(EnvironmentFailed, match="tool own returned an image or a video"):
            asked.told("own")
