"""`rhymed scale`: more or fewer workers of a living run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_examples, add_run, make_parser
from rhymed.output import show


def add(subparsers: Any) -> None:
    parser = make_parser(
        subparsers, "scale", "change how many rollout, environment or reward workers a living run has", handle
    )
    add_examples(
        parser,
        "rhymed scale rollout=12           # starts more, or sends the last ones away",
        "rhymed scale rollout=4 reward=2 --run runs/quickstart",
    )
    parser.add_argument("wanted", nargs="+", metavar="ROLE=N", help="rollout=N, environment=N or reward=N")
    add_run(parser, positional=False)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.config.load import load_run
    from rhymed.errors import ConfigError
    from rhymed.launch import crew
    from rhymed.run import folder as runs

    folder: Path = arguments.run
    if not (folder / "config.json").exists():
        raise ConfigError(f"{folder} is no run's folder: name it with --run{runs.near(folder)}")
    wanted = crew.parse(arguments.wanted, load_run(folder))
    if runs.holder(folder) is None:
        raise ConfigError(
            f"{folder} is supervised by no `rhymed run`: start it with `rhymed run --resume {folder}`; workers that"
            " were started by hand are ended by hand"
        )
    crew.ask(folder, wanted)
    for role, number in wanted.items():
        show(f"{role}: {number} wanted; `rhymed queues` lists those that have joined")
    return 0
