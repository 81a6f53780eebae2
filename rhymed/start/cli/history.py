"""`rhymed history`: inspects, exports, imports and checks the store of a run."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import ConfigError
from rhymed.core.output import show, show_json
from rhymed.core.text import counted, quoted, readable
from rhymed.start.cli.options import (
    add_examples,
    add_json,
    add_override,
    add_run,
    add_take_over,
    count,
    make_parser,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rhymed.core.config import Config
    from rhymed.core.console import Terminal


# `rhymed history compare`, `audit`, `verify` and `backup`: is a run's store what it should be?


def _add_compare(verbs: Any) -> None:
    parser = make_parser(
        verbs,
        "compare",
        "compare two runs: which samples differ, and which run is better; exit status 1 if samples differ",
        compare,
    )
    add_examples(parser, "rhymed history compare runs/plain runs/fast")
    parser.add_argument("first", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("second", type=Path, metavar="OTHER", help="another run's folder")
    add_json(parser)


def _add_audit(verbs: Any) -> None:
    parser = make_parser(
        verbs,
        "audit",
        "check that every sample was trained exactly once or dropped with a reason; exit status 1 if not",
        audit,
    )
    add_examples(parser, "rhymed history audit runs/quickstart")
    add_run(parser)


def _add_maintenance(verbs: Any) -> None:
    parser = make_parser(
        verbs, "verify", "read a run's whole store and list damaged entries; exit status 1 if there are any", verify
    )
    add_examples(parser, "rhymed history verify runs/quickstart")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder; the run may be alive")
    parser = make_parser(verbs, "backup", "copy a run's store, even while it is written, to a new run folder", backup)
    add_examples(parser, "rhymed history backup runs/latest /mnt/copies/tuesday")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder; the run may be alive")
    parser.add_argument("target", type=Path, metavar="FOLDER", help="new folder; must not exist")
    parser = make_parser(verbs, "restore", "make a run's folder of its copy at a URL", restore)
    add_examples(
        parser,
        "rhymed history restore s3://bucket/runs/mine",
        "rhymed history restore s3://bucket/runs/mine other --steps 20",
    )
    parser.add_argument("url", metavar="URL", help="of the run's copy: run.remote/NAME")
    parser.add_argument(
        "folder", nargs="?", type=Path, default="runs", metavar="FOLDER", help="gets NAME (default: runs)"
    )
    parser.add_argument("--steps", type=count, metavar="N", help="the newest backup of at most N steps")
    add_take_over(parser, "another machine had the run and is gone; refused while that one is alive")


def verify(arguments: argparse.Namespace) -> int:
    """Exit status 1 where something is damaged."""
    from rhymed.records.history.maintenance import render_verify, verify_run

    report, file_bytes = verify_run(arguments.run)
    show(readable(render_verify(report, arguments.run, file_bytes)))
    return int(not report.sound)


def backup(arguments: argparse.Namespace) -> int:
    if re.match(r"\w+:/", str(arguments.target)):
        by_hand = f"rhymed upload --once {quoted(arguments.run)} -o run.remote=URL"
        raise ConfigError(f"{arguments.target}: name a folder; `{by_hand}` writes what is new to URL/NAME")
    from rhymed.records.history.maintenance import backup_run, render_backup

    show(render_backup(backup_run(arguments.run, arguments.target), arguments.run, arguments.target))
    return 0


def restore(arguments: argparse.Namespace) -> int:
    from rhymed.records.remote.restore import render
    from rhymed.records.remote.restore import restore as fetch

    restored = fetch(arguments.url, arguments.folder, steps=arguments.steps, take_over=arguments.take_over)
    show(
        f"{render(restored, arguments.url, time.time())}\nrhymed run --resume {quoted(restored.folder)} continues it"
    )
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Exit status 1 where they differ, whichever run is better."""
    from rhymed.records import better
    from rhymed.records.history.compare import samples
    from rhymed.records.history.folder import open_folder

    if arguments.first.resolve() == arguments.second.resolve():
        raise ConfigError(f"{arguments.first} and {arguments.second} are the same run: name two different runs")
    with open_folder(arguments.first) as first, open_folder(arguments.second) as second:
        result = samples.compare(first, second)
        text = readable(samples.render(result, first.name, second.name))
        folders = first.folder, second.folder
    found = better.compare(*folders)
    if arguments.json:
        show(json.dumps({**result.json(), "better": found and found.json()}, indent=2))
    else:
        show("\n".join([text, better.report(found)] if found else [text]))
    return int(not result.same)


def audit(arguments: argparse.Namespace) -> int:
    """Exit status 1 where a sample is not accounted for."""
    from rhymed.records.history.compare import audit as audits
    from rhymed.records.history.folder import open_folder

    with open_folder(arguments.run) as folder:
        result = audits.audit(folder)
        show(readable(audits.render(result, folder.name)))
    return int(bool(result.wrong))


def add(top: argparse.ArgumentParser) -> None:
    add_examples(
        top,
        "rhymed history stats                           # size, lengths, rewards",
        "rhymed history show                            # the prompts",
        "rhymed history show 'how many apples'          # one prompt by epoch",
        "rhymed history export samples.parquet          # every sample as a row",
        "rhymed history import next.toml runs/latest    # history for the next run",
        "rhymed history compare runs/plain runs/fast    # the same samples?",
        "rhymed history audit runs/latest            # was every sample trained once?",
        "rhymed history verify runs/latest           # is the store intact?",
        "rhymed history backup runs/latest /mnt/copy # while the run continues",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_stats(verbs)
    _add_show(verbs)
    _add_export(verbs)
    _add_import(verbs)
    _add_compare(verbs)
    _add_audit(verbs)
    _add_maintenance(verbs)


def _add_stats(verbs: Any) -> None:
    parser = make_parser(verbs, "stats", "samples, lengths and rewards by epoch", show_stats)
    add_examples(parser, "rhymed history stats runs/quickstart", "rhymed history stats --json")
    add_run(parser)
    add_json(parser)


def _add_show(verbs: Any) -> None:
    parser = make_parser(
        verbs, "show", "list the prompts, or show the responses of one prompt by epoch", show_samples
    )
    add_examples(
        parser,
        "rhymed history show",
        "rhymed history show --kind held-out",
        "rhymed history show 3f2a --epochs 1,5",
        "rhymed history show 'how many apples' --limit 8",
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="id, prefix of an id, or words of its text")
    add_run(parser, positional=False)
    parser.add_argument(
        "--epochs", metavar="N,N", help="epochs, from 1 (default: the last ones that fit); -1: newest imported"
    )
    parser.add_argument(
        "--kind", choices=("training", "held-out", "imported"), help="list only these prompts (default: all)"
    )
    parser.add_argument(
        "--sort", choices=("reward", "length", "spread", "id"), default="reward", help="order, the least first"
    )
    parser.add_argument("--limit", type=count, metavar="N", help="prompts (default: 20), or responses (default: 4)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, for each prompt or sample")


def _add_export(verbs: Any) -> None:
    parser = make_parser(verbs, "export", "write every sample as a row of a parquet or JSONL file", export)
    add_examples(parser, "rhymed history export samples.parquet", "rhymed history export samples.jsonl --force")
    parser.add_argument("out", type=Path, metavar="OUT", help="file.parquet or file.jsonl")
    add_run(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def _add_import(verbs: Any) -> None:
    parser = make_parser(verbs, "import", "import an earlier run's responses as history for a new run", bring)
    add_examples(
        parser,
        "rhymed history import next.toml runs/quickstart",
        "rhymed history import next.toml runs/quickstart --all",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file of the run, or its folder")
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the earlier run's folder, or a backup of it")
    parser.add_argument("--all", action="store_true", help="include prompts that are not in the run's data")
    add_override(parser)


def show_stats(arguments: argparse.Namespace) -> int:
    from rhymed.records.history.folder import open_folder
    from rhymed.records.history.stats import render, stats

    with open_folder(arguments.run) as folder:
        found = stats(folder.browse)
        if arguments.json:
            show_json(json.dumps(found, indent=2))
        else:
            _terminal().print(render(found, folder.name))
    return 0


def show_samples(arguments: argparse.Namespace) -> int:
    from rhymed.records.history import show as view
    from rhymed.records.history.folder import open_folder
    from rhymed.records.history.prompts import listing, render_listing

    with open_folder(arguments.run) as folder:
        ids = view.find(folder.browse, arguments.prompt) if arguments.prompt else folder.browse.ids()
        if not arguments.prompt or len(ids) > 1:
            rows, there = listing(folder.browse, set(ids), arguments.sort, arguments.limit or 20, arguments.kind)
            if arguments.json:
                _print_json(rows)
            else:
                _terminal().print(render_listing(rows, there))
            return 0
        shown = view.columns(folder, ids[0], _epochs(arguments.epochs), _terminal().width)
        if arguments.json:
            from rhymed.records.history.export import plain
            from rhymed.records.history.export import rows as samples

            steps = {response.info.id.step for one in shown.values() for response in one}
            _print_json(plain(row) for row in samples(folder, ids[0]) if row["step"] in steps)
            return 0
        _terminal().print(view.render(folder, ids[0], shown, arguments.limit or 4))
        if folder.missing:
            show(f"token ids, not text: {folder.missing}", file=sys.stderr)
    return 0


def _print_json(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        show_json(json.dumps(row, ensure_ascii=False))


def _terminal() -> Terminal:
    from rhymed.core.console import Terminal

    return Terminal(highlight=False, markup=False)


def _epochs(text: str | None) -> list[int] | None:
    """From 0, as the store's data."""
    if text is None:
        return None
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--epochs {text}: write numbers with commas between them, e.g. --epochs 1,5") from None
    if 0 in numbers:
        raise ConfigError(f"--epochs {text}: epochs count from 1")
    return [number - 1 if number > 0 else number for number in numbers]


def export(arguments: argparse.Namespace) -> int:
    from rhymed.records.history.export import export as write
    from rhymed.records.history.folder import open_folder

    with open_folder(arguments.run) as folder:
        done = write(folder, arguments.out, force=arguments.force)
        of = f"{counted(done.samples, 'sample')} of {counted(done.prompts, 'prompt')}"
        show(f"{arguments.out}: {of}, {counted(done.tokens, 'token')}")
        if folder.missing:
            show(f"without text: {folder.missing}", file=sys.stderr)
        if done.damaged:
            damaged = counted(len(done.damaged), "damaged prompt")
            show(f"left out {damaged}; the first is {done.damaged[0]}", file=sys.stderr)
        return int(bool(done.damaged))


def bring(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.core.run.layout import layout_of
    from rhymed.inputs.datasets import load_rows
    from rhymed.inputs.rows import prompt_id
    from rhymed.records.history import ingest
    from rhymed.records.history.folder import open_folder

    config = _target(arguments)
    if layout_of(config).folder == arguments.source.resolve():
        raise ConfigError(f"{arguments.source} is the folder of CONFIG's own run: its history is there already")
    with open_folder(arguments.source) as source:
        whose = f"the model of {arguments.config}"
        own = ingest.vocabulary_of(config)
        remedy = "import from a run of the same model family"
        own.check(source.vocabulary, whose, str(arguments.source), remedy)
        if own.size and not (own.fingerprint and source.vocabulary.fingerprint):
            ingest.check_ids(source.browse, own.size, whose)
        wanted = None if arguments.all else {prompt_id(row) for row in load_rows(config)}
        report = asyncio.run(ingest.import_history(source.browse, config, wanted))
    _tell(arguments, config, report)
    return 0


def _target(arguments: argparse.Namespace) -> Config:
    """Of the run that gets the history: a folder's own, the living one, or the next of that name."""
    from rhymed.core.config.load import load_config
    from rhymed.core.run.folder import with_free_name
    from rhymed.core.run.layout import layout_of
    from rhymed_store.database.transactions import is_open

    path = arguments.config / "config.json" if arguments.config.is_dir() else arguments.config
    config = load_config(path, arguments.override)
    if path.name == "config.json" or is_open(layout_of(config).database):
        return config
    return with_free_name(config)


def _tell(arguments: argparse.Namespace, config: Config, report: Any) -> None:
    from rhymed.core.run.layout import layout_of

    where = layout_of(config)
    epochs = "step -1" if report.epochs == 1 else f"steps -{report.epochs} to -1"
    show(
        f"{where.folder}: {counted(report.samples, 'sample')} of {counted(report.prompts, 'prompt')} imported", end=""
    )
    show(f", {report.tokens:,} tokens, as {epochs}" if report.samples else "")
    for reason, samples in report.left_out.most_common():
        show(f"left out {counted(samples, 'sample')}: {reason}")
    if not where.config.exists():
        show(f"`rhymed run {quoted(arguments.config)}` starts with this history, as run {config.run.name}")
