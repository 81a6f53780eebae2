"""What a program passes as objects, as files of the run's folder: rows as JSONL, functions as modules."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from rhymed import atomic
from rhymed.api.source import module_text, tools_text
from rhymed.errors import DataError, RunMismatch
from rhymed.text import short

FOLDER = "inputs"  # in the run's folder


def is_place(value: Any) -> bool:
    """A file, a folder or a hub id, and not the thing itself."""
    return isinstance(value, str | PathLike)


def write_rows(rows: Any, file: Path, what: str) -> None:
    """A list of dicts, a `datasets.Dataset`, a `pandas.DataFrame`, or anything with a length that gives dicts. Raises
    `DataError`."""
    with atomic.new_file(file) as part, part.open("w") as opened:
        for line in lines(rows, what):
            opened.write(line)


def lines(rows: Any, what: str) -> Iterator[str]:
    """JSON, a row each. Raises `DataError`."""
    number = -1
    for number, row in enumerate(_rows(rows, what)):
        if not isinstance(row, Mapping):
            raise DataError(f"{what}, row {number}: a dict of columns is needed, not {short(row)}")
        try:
            yield json.dumps(dict(row), default=_plain, allow_nan=False, ensure_ascii=False) + "\n"
        except (TypeError, ValueError) as error:
            column, why = _unwritable(row, error)
            raise DataError(
                f"{what}, row {number}: column {column!r} cannot be written as JSON ({why}): remove or convert it"
            ) from None
    if number < 0:
        raise DataError(f"{what} has no rows")


def check_rows(rows: Any, file: Path, what: str) -> None:
    """Raises `RunMismatch` if the file has other rows."""
    with file.open() as opened:
        for ours, theirs in itertools.zip_longest(opened, lines(rows, what)):
            if ours != theirs:
                raise RunMismatch(
                    f"{what} differs from the rows of the run, {file}: leave it out to resume the run, or start a new"
                    " run"
                )


def _rows(rows: Any, what: str) -> Any:
    if isinstance(rows, Mapping):
        splits = ", ".join(map(str, rows))
        raise DataError(f"{what} is a dict of {splits}: name one, e.g. dataset[{next(iter(rows), 'train')!r}]")
    if hasattr(rows, "to_dict") and hasattr(rows, "notna"):  # pandas
        return rows.astype(object).where(rows.notna(), None).to_dict("records")
    if not hasattr(rows, "__len__"):
        raise DataError(
            f"{what} is {type(rows).__name__}, whose length is unknown: pass a list of dicts, e.g."
            " list(itertools.islice(rows, 1000))"
        )
    return rows


def _plain(value: Any) -> Any:
    """What JSON has no type for: numpy's scalars and arrays, dates."""
    for method in ("tolist", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"{type(value).__name__}: {short(value, 40)}")


def _unwritable(row: Mapping[Any, Any], error: Exception) -> tuple[str, str]:
    for name, value in row.items():
        try:
            json.dumps(value, default=_plain, allow_nan=False)
        except (TypeError, ValueError) as found:
            return str(name), str(found)
    return "?", str(error)


def write_scorer(function: Callable[..., Any], folder: Path) -> str:
    """`file.py:function` of a function: its own file if it is importable, else a copy in this folder. Raises
    `RewardError`."""
    if place := _place(function):
        return place
    text, name = module_text(function)
    return f"{_written(text, name, folder)}:{name}"


def write_tools(tools: Sequence[Callable[..., Any]], folder: Path, what: str) -> str:
    """`file.py:a,b` of functions or a class: their own file if all are importable from there, else a copy in this
    folder. `what`: the argument that has them. Raises `EnvironmentFailed`."""
    places = [_place(tool).rpartition(":") for tool in tools]
    if len({file for file, _, _ in places}) == 1 and places[0][0]:
        return f"{places[0][0]}:{','.join(name for _, _, name in places)}"
    text, names = tools_text(tools, what)
    return f"{_written(text, what, folder)}:{','.join(names)}"


def _written(text: str, name: str, folder: Path) -> Path:
    """A module with this text, whose name is free."""
    for number in itertools.count(1):
        file = folder / (f"{name}.py" if number == 1 else f"{name}_{number}.py")
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            atomic.write(file, text)
        if file.read_text() == text:
            return file
    raise AssertionError("there is always a next number")


def _place(function: Callable[..., Any]) -> str:
    """Where a new process finds the function at the top of an imported module; empty: nowhere."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    file = getattr(module, "__file__", None) or ""
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not function:
        return ""
    if "." in module.__name__ or not file.endswith(".py"):
        return f"{module.__name__}:{name}"
    return f"{Path(file).resolve()}:{name}"
