"""The eight rooms that are one package: core, inputs, placement, histospec, records, check, show and start.

`rhymed.train`, `rhymed.open_run` and `rhymed.Run` are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rhymed.core.errors import RhymedError
    from rhymed.start.api import Run, open_run, train

__version__ = "0.1.0"
__all__ = ["RhymedError", "Run", "__version__", "open_run", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rhymed' has no attribute {name!r}")
    return getattr(
        importlib.import_module("rhymed.core.errors" if name == "RhymedError" else "rhymed.start.api"), name
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
