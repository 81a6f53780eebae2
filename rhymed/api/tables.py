"""Rows of a run as a table: pandas, Arrow, or a list of dicts."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from rhymed.errors import ConfigError

As: TypeAlias = Literal["pandas", "arrow", "list"]
"""pandas.DataFrame, pyarrow.Table, or list[dict]."""


def table(rows: Sequence[dict[str, Any]], as_: As | None) -> Any:
    """None: pandas if it is installed, else a list. Raises `ConfigError` for a package that is missing."""
    kind = as_ or ("pandas" if importlib.util.find_spec("pandas") else "list")
    if kind == "list":
        return list(rows)
    if kind not in ("pandas", "arrow"):
        raise ConfigError(f"as_ = {as_!r}: pandas, arrow or list is expected")
    try:
        if kind == "pandas":
            import pandas

            return pandas.DataFrame(list(rows))
        import pyarrow
    except ImportError as error:
        package = "pandas" if kind == "pandas" else "pyarrow"
        raise ConfigError(f"as_ = {as_!r}: {error}; pip install {package}") from None
    return pyarrow.Table.from_pylist(list(rows))
