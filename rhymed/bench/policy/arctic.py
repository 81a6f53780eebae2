"""arctic-inference, whose suffix trees some benchmarks compare with, where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path


def has_arctic(folder: Path | None) -> bool:
    """Whether arctic-inference can be imported. Puts `folder` first on the import path."""
    import importlib.util

    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        return importlib.util.find_spec("arctic_inference.suffix_decoding") is not None
    except ModuleNotFoundError:
        return False
