"""Packages and devices that some tests need, found without their import: each worker of a run collects every file."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

PLACES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
"""Of `pytest.mark.parametrize`: the device of a test that also runs on processors. Its first call is `on`."""


def needs(name: str) -> pytest.MarkDecorator:
    """A mark that skips a test, or all of a module, where the package is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")


def on(place: str) -> Any:
    """torch's device; skips the test where there is none."""
    import torch

    if place == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(place)
