"""A copied function computes what the original does, in a process that has nothing else."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.start.api.inputs import Uncopied, module_text
from tests.start.api import rewards

TEXTS = ["one two two", "a longer answer of six words", ""]


def run_copy(text: str, name: str, folder: Path) -> Any:
    """In a new process, in another folder."""
    (folder / "copied.py").write_text(text)
    code = (
        f"import copied, json, asyncio, inspect\nfound = copied.{name}({TEXTS!r})\n"
        "print(json.dumps(asyncio.run(found) if inspect.isawaitable(found) else found))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + text
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "function",
    [rewards.plain, rewards.uses_all, rewards.with_weight(0.5), rewards.recursive, rewards.uses_a_module_of_its_own],
)
def test_a_copy_with_all_it_needs_computes_the_same(function: Callable[..., Any], tmp_path: Path) -> None:
    text, (name,) = module_text([function], "reward")
    assert run_copy(text, name, tmp_path) == function(TEXTS)
    assert "write_tiny_model" not in text or "import" in text


def test_an_async_function_is_copied(tmp_path: Path) -> None:
    text, (name,) = module_text([rewards.slow], "reward")
    assert run_copy(text, name, tmp_path) == [1.0, 1.0, 1.0]


def test_only_what_is_used_is_copied() -> None:
    text, _ = module_text([rewards.with_weight(2.5)], "reward")
    assert "weight = 2.5" in text
    assert "def share" in text
    assert "Scale" not in text
    assert "OPENED" not in text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda completions, **columns: [0.0], "is no function with a name"),
        (rewards.uses_a_file, "uses_a_file uses OPENED, a TextIOWrapper, which cannot be copied"),
        (rewards.Judge(), "is no function with a name"),
        (rewards.Judge().score, "is no function with a name"),
        (len, "is no function with a name"),
        (functools.partial(rewards.plain, column="x"), "is no function with a name"),
    ],
)
def test_what_cannot_be_copied_is_an_error_with_a_cure(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(Uncopied, match=words):
        module_text([function], "reward")


def test_a_function_without_source_is_an_error_with_a_cure() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def typed(completions, **columns):\n    return [0.0]", names)
    with pytest.raises(Uncopied, match=r"the source of typed cannot be read.*file\.py:function"):
        module_text([names["typed"]], "reward")


def test_two_values_of_one_name_are_refused() -> None:
    inner = rewards.with_weight(1.0)

    def outer(completions, **columns):
        return [*inner(completions), weight]

    weight = 2.0
    outer.__module__ = rewards.__name__
    with pytest.raises(Uncopied, match="called weight"):
        module_text([outer], "reward")
