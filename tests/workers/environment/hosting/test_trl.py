"""TRL's `tools` and `environment_factory`, unchanged: what is a tool, what a policy reads, what gives the reward."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.errors import EnvironmentFailed, RowUnsuitable
from rhymed_workers.sessions.calls import Wanted
from tests.workers.environment.hosting.hosts import CHAT, hosted

TEXT = '''
import functools

def add(a: int, b: int = 1) -> int:
    """Adds.

    Args:
        a: First.
        b: Second.
    """
    return a + b

def give(what: str) -> object:
    """Gives something.

    Args:
        what: Which.
    """
    return {"dict": {"x": [1, "y"]}, "none": None, "list": [1, 2], "float": 0.5,
            "blocks": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "image": [{"type": "image", "image": 0}]}[what]

class Counter:
    made = 0

    def __init__(self):
        Counter.made += 1
        self.count = 0

    @property
    def secret(self):
        raise AssertionError("TRL does not look at properties")

    def reset(self, start=0, **row):
        self.count, self.row = start, row
        return None if start else " Count!"

    def step(self) -> str:
        """Counts."""
        self.count += 1
        return f"now {self.count}"

    @staticmethod
    def double(number: int) -> int:
        """Doubles.

        Args:
            number: Any.
        """
        return 2 * number

    def close(self):
        Counter.made -= 1

    def _hidden(self):
        pass

    async def get_reward(self):
        return self.count / 10

class Door:
    def reset(self, **row):
        assert "environment" not in row
        self.open = False

    def close(self, hard: bool) -> str:
        """Closes the door.

        Args:
            hard: How.
        """
        return "bang" if hard else "click"

    def get_reward(self):
        return None

class NoReset:
    def act(self) -> str:
        """Acts."""

class Pictures:
    def reset(self, **row):
        return [{"type": "image", "image": 0}]

FACTORIES = {"count": Counter, "door": functools.partial(Door)}
EMPTY = {}
'''


def test_results_read_as_in_trl(tmp_path: Path) -> None:
    with hosted(tmp_path, TEXT, tools="add,give") as asked:
        assert asked.reported("add", a=2) == "3"
        assert asked.reported("give", what="dict") == "{'x': [1, 'y']}"
        assert asked.reported("give", what="none") == "None"
        assert asked.reported("give", what="list") == "[1, 2]"
        assert asked.reported("give", what="float") == "0.5"
        assert asked.reported("give", what="blocks") == "ab"
        assert asked.reported("give", what="other") == str({"error": "'other'"})
        with pytest.raises(EnvironmentFailed, match="tool give returned image: policies of rhymed read text alone"):
            asked.reported("give", what="image")


def test_tools_of_a_file_share_its_globals(tmp_path: Path) -> None:
    text = """
kept = []

def put(what: str) -> str:
    '''Keeps.\n\n    Args:\n        what: What.\n    '''
    kept.append(what)
    return "kept"

def got() -> str:
    '''What is kept.'''
    return " ".join(kept)
"""
    with hosted(tmp_path, text, tools="put,got") as asked:
        assert asked.reported("put", what="tea") == "kept"
        assert asked.reported("got") == "tea"


def test_public_methods_are_tools_and_the_rest_is_the_trainers(tmp_path: Path) -> None:
    with hosted(tmp_path, TEXT, factory="Counter") as asked:
        assert asked.host.awaits
        chat, tools = asked.open('{"start": 0, "answer": 7}')
        assert tools == ["double", "step"]
        assert chat == [CHAT[0], {"role": "user", "content": "Begin. Count!"}]
        assert asked.reported("step") == "now 1"
        assert asked.reported("double", number=4) == "8"
        assert asked.step(text="Done.").reward == 0.1
        assert asked.open('{"start": 5}', name="b")[0] == CHAT
        assert asked.step(Wanted("step", {}), name="b", last=True).reward == 0.6


def test_tools_and_an_environment_together(tmp_path: Path) -> None:
    with hosted(tmp_path, TEXT, tools="add", factory="Counter") as asked:
        assert asked.open()[1] == ["add", "double", "step"]
        assert (asked.reported("add", a=1), asked.reported("step")) == ("2", "now 1")


def test_a_row_names_its_environment_of_several_and_has_its_tools_alone(tmp_path: Path) -> None:
    with hosted(tmp_path, TEXT, tools="add", factory="FACTORIES") as asked:
        names = [tool["function"]["name"] for tool in asked.host.tools]
        assert names == ["add", "double", "step", "close"]
        assert asked.open('{"environment": "door"}')[1] == ["add", "close"]
        assert asked.open('{"environment": "count"}', name="b")[1] == ["add", "double", "step"]
        assert asked.reported("close", hard=True) == "bang"
        assert "there is no tool 'step'" in asked.reported("step")
        assert asked.step(text="Bye.").reward is None
        for row, given in (("{}", "None"), ('{"environment": "sea"}', "'sea'")):
            with pytest.raises(RowUnsuitable, match=f"its column environment is {given}, and .* has count, door"):
                asked.open(row)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"factory": "NoReset"}, r"NoReset has no method reset\(\*\*row\)"),
        ({"factory": "EMPTY"}, "is no class, function or dict of them"),
        ({"factory": "Missing"}, "Missing"),
        ({"tools": "add,add"}, "two tools have the same name"),
    ],
)
def test_what_cannot_be_used_is_reported_when_it_is_loaded(tmp_path: Path, named: dict[str, str], why: str) -> None:
    with pytest.raises(EnvironmentFailed, match=why), hosted(tmp_path, TEXT, **named):
        pass


def test_pictures_in_an_observation_are_refused(tmp_path: Path) -> None:
    refused = r"reset\(\) returned image: policies of rhymed read text alone"
    with hosted(tmp_path, TEXT, factory="Pictures") as asked, pytest.raises(EnvironmentFailed, match=refused):
        asked.open()


SCHEMAS = '''
import sys
from rhymed_workers.environment.hosting import tool
from typing import Any, Literal, Optional, Union

TEXT = """
Says {name}, in
two lines.

Args:
    one: First (choices: ["a", "b"])
    two: Second,
        in two lines.
Returns:
    What it says.
"""

def of(one, two, back=str):
    def named(one, two=None):
        pass
    named.__doc__ = TEXT
    named.__annotations__ = {"one": one, "two": two, "return": back}
    return named

HINTS = [int, float, bool, Any, None, dict, list, tuple, object, int | None, Union[int, str], Optional[list[int]],
    Literal["up", "down", 3], list[dict[str, list[float]]], tuple[int, str], dict[str, int | list[str]]]
functions = [of(hint, str, hint) for hint in HINTS]
lean = [tool.schema_of(function) for function in functions]
assert not {"torch", "numpy", "transformers"} & set(sys.modules), "the whole of transformers was imported"

import torch, PIL.Image
functions += [of(torch.Tensor, list[PIL.Image.Image])]
lean += [tool.schema_of(functions[-1])]

from transformers.utils.chat_template_utils import get_json_schema
assert lean == [get_json_schema(function) for function in functions]
assert lean[-1]["function"]["parameters"]["properties"]["one"]["type"] == "audio"
'''


def test_schemas_are_those_of_transformers_without_its_import() -> None:
    done = subprocess.run([sys.executable, "-c", SCHEMAS], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
