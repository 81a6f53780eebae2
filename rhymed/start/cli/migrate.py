"""`rhymed migrate-config`: a configuration of TRL or verl as one of rhymed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.atomic import write_all
from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.core.text import quoted
from rhymed.start.cli.options import add_examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rhymed.start.migrate import Migration


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed migrate-config train_grpo.py -o mine.toml",
        "rhymed migrate-config grpo.yaml -o mine.toml",
        "rhymed migrate-config run_grpo.sh trainer.n_gpus_per_node=4 -o mine.toml",
    )
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        help="a Python script with GRPOConfig(...), a YAML file, a shell script, or name=value; later ones win",
    )
    parser.set_defaults(listed="source")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write there (default: print it)")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of a machine, if not the source's; 0: none")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.start.migrate import migrate
    from rhymed.start.migrate.migration import document

    out: Path | None = arguments.out
    if arguments.gpus is not None and arguments.gpus < 0:
        raise ConfigError(f"--gpus {arguments.gpus}: a number of GPUs, or 0 for processors")
    migration = migrate(arguments.source, out or Path("mine.toml"), arguments.gpus)
    text = document(migration, " ".join(Path(source).name for source in arguments.source))
    if out is None:
        show(text, end="")
        if migration.modules:
            names = ", ".join(map(str, migration.modules))
            show(f"rhymed: with -o FILE the script's functions are copied, too: {names}", file=sys.stderr)
        return 0
    files = {out: text, **migration.modules}
    write_all(files, filter(Path.exists, files), "another file", force=arguments.force)
    for line in _report(migration, list(files), out):
        show(line)
    return 0


def _report(migration: Migration, files: list[Path], out: Path) -> Iterator[str]:
    from rhymed.start.migrate.entries import VERDICTS

    yield from (f"wrote {file}" for file in files)
    yield f"\n{len(migration.puts)} settings translated from {migration.framework} {migration.version}"
    for file in migration.modules:
        what = "tools and environments" if file.stem.endswith("_tools") else "reward functions"
        yield f"{what} are in {file}, unchanged: {migration.framework}'s conventions are supported"
    for verdict, title in VERDICTS.items():
        notes = [note for note in migration.notes if note.verdict == verdict]
        if notes and verdict == "dropped":
            yield f"\n{title}: {sum(note.name.count(',') + 1 for note in notes)}, listed at the end of {out}"
        elif notes:
            yield f"\n{title}"
            yield from (f"  {note.name}: {note.reason}" for note in notes)
    yield f"\nnext:\n  rhymed check {quoted(out)}"
