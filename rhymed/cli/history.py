"""`rhymed history`: inspects, exports, imports and checks the store of a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed import output
from rhymed.cli import integrity
from rhymed.cli.options import add_examples, add_override, add_run, count, make_parser, refuse_run

if TYPE_CHECKING:
    from rhymed.config import Config


def add(commands: Any) -> None:
    top = make_parser(commands, "history", "inspect, export, import and check the store of a run")
    add_examples(
        top,
        "rhymed history stats                           # size, lengths, similarity",
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
    integrity.add(verbs)


def _add_stats(verbs: Any) -> None:
    parser = make_parser(verbs, "stats", "samples, lengths, rewards and similarity by epoch", show_stats)
    add_examples(parser, "rhymed history stats runs/quickstart", "rhymed history stats --prompts 20")
    add_run(parser)
    parser.add_argument(
        "--prompts", type=count, metavar="N", help="show the N most and least predictable prompts (default: 5)"
    )
    parser.add_argument("--read", type=count, metavar="N", help="read at most N prompts (default: 2000)")
    parser.add_argument("--json", action="store_true", help="as one JSON object, with every prompt that was compared")


def _add_show(verbs: Any) -> None:
    parser = make_parser(verbs, "show", "list the prompts, or show the responses of one prompt by epoch", show)
    add_examples(
        parser,
        "rhymed history show",
        "rhymed history show --held-out",
        "rhymed history show 3f2a --epochs 1,5",
        "rhymed history show 'how many apples' --limit 8",
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="id, prefix of an id, or words of its text")
    add_run(parser, positional=False)
    parser.add_argument(
        "--epochs", metavar="N,N", help="epochs, from 1 (default: the last ones that fit); -1: newest imported"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--held-out", action="store_true", help="list only prompts that are evaluated and not trained on"
    )
    only.add_argument("--training", action="store_true", help="list only prompts that are trained on")
    parser.add_argument(
        "--sort", choices=("reward", "length", "id"), default="reward", help="order of the list, the least first"
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
        "rhymed history import next.toml samples.parquet --all",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file of the run, or its folder")
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="the earlier run's folder, or an exported .parquet"
    )
    parser.add_argument("--all", action="store_true", help="include prompts that are not in the run's data")
    add_override(parser)


def show_stats(arguments: argparse.Namespace) -> int:
    from rhymed.console import Terminal
    from rhymed.history.folder import open_folder
    from rhymed.history.prompts import SHOWN
    from rhymed.history.stats import MOST_PROMPTS, render, stats

    with open_folder(arguments.run) as folder:
        found = stats(folder.browse, arguments.read or MOST_PROMPTS)
        if arguments.json:
            output.show_json(json.dumps(found.json(), indent=2))
        else:
            Terminal(highlight=False, markup=False).print(render(found, folder.name, arguments.prompts or SHOWN))
    return 0


def show(arguments: argparse.Namespace) -> int:
    from rhymed.history import show as view
    from rhymed.history.folder import open_folder
    from rhymed.history.listing import listing, order, render_listing

    refuse_run([arguments.prompt] if arguments.prompt else [], "a prompt")
    with open_folder(arguments.run) as folder:
        ids = view.find(folder.browse, arguments.prompt) if arguments.prompt else folder.browse.ids()
        if not arguments.prompt or len(ids) > 1:
            ids = order(folder.browse, ids, arguments.sort, held_out=_held_out(arguments))
            rows = listing(folder.browse, ids[: arguments.limit or 20])
            return _print(rows, arguments.json, lambda: render_listing(rows, len(ids)))
        shown = view.columns(folder, ids[0], _epochs(arguments.epochs), _width())
        if arguments.json:
            from rhymed.history.export import plain
            from rhymed.history.export import rows as samples

            steps = {response.info.id.step for one in shown.values() for response in one}
            return _print([plain(row) for row in samples(folder, ids[0]) if row["step"] in steps], True)
        status = _print([], False, lambda: view.render(folder, ids[0], shown, arguments.limit or 4))
        if folder.missing:
            output.show(f"token ids, not text: {folder.missing}", file=sys.stderr)
        return status


def _held_out(arguments: argparse.Namespace) -> bool | None:
    """None: all prompts."""
    return True if arguments.held_out else False if arguments.training else None


def _print(rows: list[dict[str, Any]], as_json: bool, render: Any = None) -> int:
    if as_json:
        for row in rows:
            output.show_json(json.dumps(row, ensure_ascii=False))
    else:
        from rhymed.console import Terminal

        Terminal(highlight=False, markup=False).print(render())
    return 0


def _width() -> int:
    from rhymed.console import Terminal

    return Terminal().width


def _epochs(text: str | None) -> list[int] | None:
    """From 0, as the store's data."""
    from rhymed.errors import ConfigError

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
    from rhymed.history.export import export as write
    from rhymed.history.folder import open_folder
    from rhymed.text import counted

    with open_folder(arguments.run) as folder:
        done = write(folder, arguments.out, force=arguments.force)
        of = f"{counted(done.samples, 'sample')} of {counted(done.prompts, 'prompt')}"
        output.show(f"{arguments.out}: {of}, {counted(done.tokens, 'token')}")
        if folder.missing:
            output.show(f"without text: {folder.missing}", file=sys.stderr)
        if done.damaged:
            damaged = counted(len(done.damaged), "damaged prompt")
            output.show(f"left out {damaged}; the first is {done.damaged[0]}", file=sys.stderr)
        return int(bool(done.damaged))


def bring(arguments: argparse.Namespace) -> int:
    import asyncio

    from rhymed.errors import ConfigError
    from rhymed.history import ingest
    from rhymed.history.origins import open_source
    from rhymed.inputs.datasets import load_rows
    from rhymed.inputs.rows import prompt_id
    from rhymed.run.layout import layout_of

    config = _target(arguments)
    if layout_of(config).folder == arguments.source.resolve():
        raise ConfigError(f"{arguments.source} is the folder of CONFIG's own run: its history is there already")
    with open_source(arguments.source) as source:
        whose = f"the model of {arguments.config}"
        own = ingest.vocabulary_of(config)
        remedy = "import from a run of the same model family"
        own.check(source.vocabulary, whose, str(arguments.source), remedy)
        if own.size and not (own.fingerprint and source.vocabulary.fingerprint):
            ingest.check_ids(source, own.size, whose)
        wanted = None if arguments.all else {prompt_id(row) for row in load_rows(config)}
        report = asyncio.run(ingest.import_history(source, config, wanted))
    _tell(arguments, config, report)
    return 0


def _target(arguments: argparse.Namespace) -> Config:
    """Of the run that gets the history: a folder's own, the living one, or the next of that name."""
    from rhymed.config.load import load_config
    from rhymed.run.folder import with_free_name
    from rhymed.run.layout import layout_of
    from rhymed_store.shards.folders import any_open

    path = arguments.config / "config.json" if arguments.config.is_dir() else arguments.config
    config = load_config(path, arguments.override)
    if path.name == "config.json" or any_open(layout_of(config).database):
        return config
    return with_free_name(config)


def _tell(arguments: argparse.Namespace, config: Config, report: Any) -> None:
    from rhymed.run.layout import layout_of
    from rhymed.text import counted

    where = layout_of(config)
    epochs = "step -1" if report.epochs == 1 else f"steps -{report.epochs} to -1"
    output.show(
        f"{where.folder}: {counted(report.samples, 'sample')} of {counted(report.prompts, 'prompt')} imported", end=""
    )
    output.show(f", {report.tokens:,} tokens, as {epochs}" if report.samples else "")
    for reason, samples in report.left_out.most_common():
        output.show(f"left out {counted(samples, 'sample')}: {reason}")
    if not where.config.exists():
        output.show(f"`rhymed run {arguments.config}` starts with this history, as run {config.run.name}")
