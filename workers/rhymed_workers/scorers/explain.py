"""Explains an error of user code in a sentence that names file and line. Knows nothing of rewards."""

from __future__ import annotations

import errno
import functools
import inspect
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed.config import Reward

ERROR_CHARS = 2000


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


def hung_at(dump: str, place: str) -> str:
    """`, at file, line n` from faulthandler's text (innermost frame first), if it was in this file or module."""
    name = str(Path(place).expanduser().resolve()) if place.endswith(".py") else f"/{place.replace('.', '/')}.py"
    for file, line in re.findall(r'^  File "(.+)", line (\d+) in ', dump, re.MULTILINE):
        if file.endswith(name):
            return f", at {file}, line {line}"
    return ""


def defined_at(function: Callable[..., Any]) -> tuple[str, int] | None:
    """File and first line of a function, a partial's function or an object's `__call__`; None if unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    plain = inspect.unwrap(function)
    if not hasattr(plain, "__code__"):
        plain = getattr(type(plain).__call__, "__wrapped__", type(plain).__call__)
    code = getattr(plain, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else None
