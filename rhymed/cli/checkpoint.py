"""`rhymed checkpoint`: lists and verifies the checkpoints of a run, and exports one as a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rhymed.cli.options import add_examples, add_run, make_parser


def add(commands: Any) -> None:
    parser = make_parser(commands, "checkpoint", "list and verify a run's checkpoints, export one as a model")
    add_examples(parser, "rhymed checkpoint list", "rhymed checkpoint export runs/quickstart my-model")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = make_parser(verbs, "list", "every checkpoint, and whether it is intact", handle_list)
    add_run(listing)
    export = make_parser(
        verbs, "export", "write one as a Hugging Face folder, without the trainer's state", handle_export
    )
    export.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    export.add_argument("target", type=Path, metavar="FOLDER", help="new folder; must not exist")
    export.add_argument("--step", type=int, help="default: the newest intact one")
    export.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")


def handle_list(arguments: argparse.Namespace) -> int:
    """Exit status 1 if one is damaged."""
    from rhymed.run.checkpoint import checkpoints_in, damage

    checkpoints = checkpoints_in(_folder(arguments.run))
    if not checkpoints:
        print(f"{arguments.run} has no checkpoint yet")
        return 0
    bad = 0
    for checkpoint in checkpoints:
        size = sum(file.stat().st_size for file in checkpoint.folder.iterdir()) / 2**20
        why = damage(checkpoint.folder)
        bad += bool(why)
        print(f"step {checkpoint.step:<8} {size:>10.1f} MiB   {f'DAMAGED: {why}' if why else 'good'}")
    return int(bad > 0)


def handle_export(arguments: argparse.Namespace) -> int:
    from rhymed_workers.trainer.export import chosen, export

    checkpoint = chosen(_folder(arguments.run), arguments.step)
    export(checkpoint, arguments.target, arguments.dtype)
    print(f"{arguments.target}: {checkpoint.step} steps trained, {arguments.dtype}")
    return 0


def _folder(run: Path) -> Path:
    from rhymed.errors import ConfigError

    if not (run / "config.json").exists():
        raise ConfigError(f"{run} is not a run's folder: it has no config.json")
    return run / "checkpoints"
