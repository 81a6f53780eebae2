"""Packages that some tests need, found without their import: each worker of a test run collects every file."""

from __future__ import annotations

import importlib.util

import pytest


def needs(name: str) -> pytest.MarkDecorator:
    """A mark that skips a test, or all of a module, where the package is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")
