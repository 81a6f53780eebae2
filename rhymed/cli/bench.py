"""`rhymed bench NAME`: the measurements behind docs/experiments.md, as commands anyone can repeat."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_override, example

NAMES: tuple[str, ...] = ("store", "crash", "broker", "weights", "model", "index", "sampler", "spec", "pipe")
NAMES += ("chaos", "soak", "hosts", "fuzz", "watch")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="measure a part of the system on this machine", **example("rhymed bench store --quick")
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="under a minute, for a look")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="model, pipe, chaos, soak, hosts: where; spec: a JSON file"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="index, pipe: recorded responses (default: made-up ones)"
    )
    parser.add_argument("--arctic", type=Path, metavar="FOLDER", help="index, spec: where arctic_inference lies")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="index: what it writes; spec: only this one")
    for name, kind in {"methods": str, "batches": int, "temperatures": float, "epochs": int}.items():
        parser.add_argument(f"--{name}", type=_list(kind), metavar="A,B", help="spec: only these")
    parser.add_argument("--rounds", type=int, metavar="N", help="spec: how often each method has its turn")
    parser.add_argument("--cost", type=Path, metavar="FILE", help="pipe: JSON [[samples, seconds of a step], ...]")
    parser.add_argument("--keep", type=float, metavar="P", help="pipe: a token written ahead stays the same")
    for name, kind, about in (
        ("steps", int, "chaos, hosts: training steps of each run"),
        ("kills", int, "chaos, crash: at most so many"),
        ("every", float, "chaos: seconds between two kills, on the average"),
        ("seed", int, "chaos, crash: of who is killed when; fuzz: of the messages"),
        ("frames", int, "fuzz: malformed messages, a million unless said"),
        ("rollout", int, "chaos, soak: rollout workers"),
        ("reward", int, "chaos, soak: reward workers"),
        ("minutes", float, "soak: how long"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=about)
    parser.add_argument("--kinds", type=_list(str), metavar="A,B", help="chaos: only these, e.g. broker,rollout,all")
    parser.add_argument(
        "--overhead", action="store_true", default=None, help="chaos: what durability costs a calm run"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on standard output")
    add_override(parser)
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    import contextlib
    import importlib
    import signal
    import sys

    # What a benchmark started must go with it: asked to end, it ends as by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    taken = {
        "model": ("out",),
        "index": ("trace", "arctic", "model"),
        "pipe": ("trace", "cost", "out", "keep"),
        "crash": ("kills", "seed"),
        "spec": ("model", "methods", "batches", "temperatures", "epochs", "rounds", "arctic", "out"),
        "chaos": ("steps", "kills", "every", "seed", "rollout", "reward", "kinds", "overhead", "out", "override"),
        "soak": ("minutes", "rollout", "reward", "out", "override"),
        "hosts": ("steps", "out"),
        "fuzz": ("frames", "seed"),
    }
    options = {name: getattr(arguments, name) for name in taken.get(arguments.name, ())}
    options = {name: value for name, value in options.items() if value is not None}
    module = importlib.import_module(f"rhymed.bench.{arguments.name}")
    with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
        result = module.run(arguments.quick, **options)
    if arguments.json:
        print(json.dumps(result, indent=2))
    return int(isinstance(result, dict) and result.get("good") is False)


def _list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]
