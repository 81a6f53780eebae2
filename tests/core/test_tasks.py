from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhymed.core.tasks import Cancelled, watched

ROOT = Path(__file__).parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


async def test_an_error_is_handed_on_and_a_cancellation_is_not() -> None:
    errors: list[BaseException] = []
    kept: set[asyncio.Task[object]] = set()

    async def fail() -> None:
        raise OSError("gone")

    failing, sleeping = watched(fail(), errors.append, kept), watched(asyncio.sleep(60), errors.append, kept)
    assert kept == {failing, sleeping}
    sleeping.cancel()
    await asyncio.wait({failing, sleeping})
    await asyncio.sleep(0)  # callbacks run after their task
    assert [str(error) for error in errors] == ["gone"]
    assert not kept


async def test_a_cancellation_that_nobody_asked_for_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[BaseException] = []
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await answer

    waiting = {watched(wait(), errors.append), watched(wait())}
    await asyncio.sleep(0)
    answer.cancel()
    await asyncio.wait(waiting)
    await asyncio.sleep(0)
    (error,) = errors
    assert isinstance(error, Cancelled)
    assert isinstance(error.__cause__, asyncio.CancelledError)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "test_a_cancellation_that_nobody_asked_for_is_an_error.<locals>.wait" in record.getMessage()


def makes_task(node: ast.AST) -> bool:
    """Not of a `TaskGroup`, which awaits its tasks."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = ast.unparse(node.func.value)
    if node.func.attr == "ensure_future":
        return True
    return node.func.attr == "create_task" and (owner == "asyncio" or owner.endswith(("loop", "loop()")))


def looked_at(function: ast.AST) -> Iterator[str]:
    """Names in what the function awaits, and those whose result or error it takes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Await):
            yield from (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
        elif isinstance(node, ast.Attribute) and node.attr in ("result", "exception"):
            yield ast.unparse(node.value)


def assigned(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (part.id for part in parts if isinstance(part, ast.Name))


def unwatched(tree: ast.AST) -> list[int]:
    """Lines that make a task whose end its function does not look at."""
    found = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)):
        names = set(looked_at(function))
        for statement in (node for node in ast.walk(function) if isinstance(node, ast.stmt)):
            inner = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
            made = [node.lineno for each in inner for node in ast.walk(each) if makes_task(node)]
            if made and not set(assigned(statement)) & names:
                found |= set(made)
    return sorted(found)


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("asyncio.create_task(work())", [2]),
        ("task = asyncio.ensure_future(work())\n task.cancel()", [2]),
        ("self.tasks.add(loop.create_task(work()))", [2]),
        ("self.task = asyncio.get_running_loop().create_task(work())\n await asyncio.shield(self.task)", [2]),
        ("task = asyncio.create_task(work())\n await asyncio.wait({task})", []),
        ("tasks = [asyncio.create_task(one) for one in many]\n await asyncio.gather(*tasks)", []),
        ("group.create_task(work())", []),
    ],
)
def test_the_rule_finds_tasks_that_nobody_looks_at(line: str, lines: list[int]) -> None:
    assert unwatched(ast.parse(f"async def f():\n {line}")) == lines


def test_every_task_is_awaited_where_it_is_made_or_watched() -> None:
    """`error_of`: the module looks at all of its tasks with it."""
    found = {}
    for folder in ("rhymed", "broker", "store", "workers"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text()
            if ("create_task(" in text or "ensure_future(" in text) and "error_of(" not in text:
                found[str(file.relative_to(ROOT))] = unwatched(ast.parse(text))
    assert {file: lines for file, lines in found.items() if lines} == {}
    assert len(found) > 3
