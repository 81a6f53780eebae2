"""`rhymed model`: download or convert a model before a run needs it."""

from __future__ import annotations

import argparse
from typing import Any

from rhymed.cli.options import add_examples, add_json, make_parser, print_json
from rhymed.output import show


def add(commands: Any) -> None:
    parser = make_parser(commands, "model", "download or convert a model, check it and print its folder", handle)
    add_examples(parser, "rhymed model Qwen/Qwen2.5-0.5B-Instruct", "rhymed model path/to/model.gguf")
    parser.add_argument(
        "name",
        nargs="?",
        default="SmolLM2-135M-Instruct",
        metavar="NAME_OR_PATH",
        help="as model.path: a folder, a GGUF file, a hub id (owner/name) or a known name",
    )
    parser.add_argument("--revision", default="", help="hub id: branch, tag or commit")
    add_json(parser)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.inputs.models import prepare

    folder = prepare(arguments.name, arguments.revision, newest=True)
    if arguments.json:
        print_json({"name": arguments.name, "folder": str(folder)})
    else:
        show(folder)
    return 0
