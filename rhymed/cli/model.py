"""`rhymed model`: make a model available before a run needs it."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser("model", help="make a known model available and print its folder")
    parser.add_argument("name", nargs="?", default="SmolLM2-135M-Instruct")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.models import prepare

    print(prepare(arguments.name))
    return 0
