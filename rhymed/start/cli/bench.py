"""`rhymed bench spec`: how much faster engines are with drafts, with the user's model."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed.start.cli.options import add_examples

OPTIONS = ("model", "methods", "batches", "temperatures", "epochs", "rounds", "out", "device", "dtype")


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed bench spec --model runs/mine --methods none,ngram,history",
        "rhymed bench spec --model Qwen/Qwen2.5-0.5B-Instruct --batches 1,16",
    )
    parser.add_argument(
        "name", choices=["spec"], metavar="spec", help="others: `python -m benchmarks`, in a checkout"
    )
    parser.add_argument("--quick", action="store_true", help="a small version that takes less than a minute")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="only this model, or the prompts of this run")
    for name, kind in {"methods": str, "batches": int, "temperatures": float, "epochs": int}.items():
        more = " (1: with history of other prompts only, 2: with that of epoch 1)" if name == "epochs" else ""
        parser.add_argument(f"--{name}", type=listed(kind), metavar="A,B", help=f"only these{more}")
    parser.add_argument("--rounds", type=int, metavar="N", help="measurements of each method")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result there, as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where engines compute")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the engines' weights")


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.start.bench import spec

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as after Ctrl-C, with the engines
    options = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    spec.run(arguments.quick, **options)
    return 0


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Reads values with commas between them."""

    def parse(text: str) -> list[Any]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            what = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(f"{text!r}: {what} with commas between them are needed") from None

    return parse
