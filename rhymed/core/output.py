"""What commands write to stdout and stderr. `print` is refused by the linter: text of others would pass it raw."""

from __future__ import annotations

import sys
from typing import TextIO

from rhymed.core.printable import json_visible, visible


def show(text: object = "", *, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Like `print`, for people: characters that steer a terminal are replaced."""
    out = sys.stdout if file is None else file
    shown = "\t".join(map(visible, str(text).split("\t")))  # tabs are harmless, and scripts may need them
    out.write(f"{shown}{end}")
    if flush:
        out.flush()


def show_json(text: str) -> None:
    """For programs: such characters, and those that stdout cannot encode, become escapes of JSON, so the value is the
    same."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(f"{json_visible(text, encoding)}\n")
