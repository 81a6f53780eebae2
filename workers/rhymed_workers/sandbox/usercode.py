"""Functions of users: imported from a file or a module, and what they raise in a sentence that names file and line.

Knows neither rewards nor environments.
"""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import RewardError
from rhymed.core.text import short

if TYPE_CHECKING:
    from rhymed.core.config import Reward

ERROR_CHARS = 2000


def import_named(
    name: str, key: str, accepts: Callable[[Any], bool] = callable, loaded: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """`file.py:name` or `module:name`. `key`: the setting. `loaded`: modules of earlier calls, which are not executed
    again. Raises `RewardError` for what it does not accept."""
    place, _, attribute = name.rpartition(":")
    path = Path(place).expanduser().resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise RewardError(f"{key}: no file {path}")
    try:
        module = (loaded or {}).get(place)
        if module is None:
            module = _from_file(path) if path is not None else importlib.import_module(place)
    except BaseException as error:  # whatever a module does when it is imported, sys.exit included
        where = raised_at(error, str(path or ""))
        text = f"{key}: importing {place} failed: {describe(error)}"
        raise RewardError(f"{text} ({where})" if where else text) from error
    if loaded is not None:
        loaded[place] = module
    function: Any = getattr(module, attribute, None)
    if function is not None and accepts(function):
        found: Callable[..., Any] = function
        return found
    if hasattr(module, attribute):
        raise RewardError(
            f"{key}: {attribute!r} in {place} is {short(function)} ({type(function).__name__}), not a function"
        )
    names = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
    raise RewardError(f"{key}: {place} has no function {attribute!r}; it has: {', '.join(names) or 'none'}")


def _from_file(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))  # as when it is run: it can import its neighbours
    name = f"rhymed_scorer_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    spec.loader.exec_module(module)
    return module


def describe(error: BaseException) -> str:
    """`ValueError: text`, cut at `ERROR_CHARS`; a syntax error without its place. Never raises."""
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:ERROR_CHARS]
    except Exception:  # user code may have broken its own __str__
        text = ""
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def overrun(error: BaseException | None, reward: Reward, crowded: bool) -> str:
    """The limit of the scoring process that it exceeded; empty if none. `crowded`: near `reward.processes_limit`."""
    while error is not None:
        if isinstance(error, MemoryError):
            return f"it used more than {reward.memory_gib:g} GiB of memory (reward.memory_gib)"
        code = error.errno if isinstance(error, OSError) else None
        if code == errno.EFBIG:
            return f"it wrote a file larger than {reward.file_mib} MiB (reward.file_mib)"
        if code in (errno.EMFILE, errno.ENFILE):
            return f"it opened more than {reward.open_files} files (reward.open_files)"
        if crowded and (code == errno.EAGAIN or "start new thread" in describe(error)):
            return too_many(reward)
        error = error.__cause__ or error.__context__
    return ""


def too_many(reward: Reward) -> str:
    return f"it tried to start more than {reward.processes_limit} processes (reward.processes_limit)"


def raised_at(error: BaseException, file: str) -> str:
    """`file, line n` of the last frame in this file, or of a syntax error; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}, line {error.lineno}"
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f"{file}, line {lines[-1]}" if lines else ""


def defined_at(function: Callable[..., Any]) -> tuple[str, int] | None:
    """File and first line of a function, a partial's function or an object's `__call__`; None if unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    plain = inspect.unwrap(function)
    if not hasattr(plain, "__code__"):
        plain = getattr(type(plain).__call__, "__wrapped__", type(plain).__call__)
    code = getattr(plain, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else None
