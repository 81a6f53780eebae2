"""`rhymed check`: what a run will do and need, its first prompts, the reward of the first row. Starts no run."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.start.cli.options import add_examples, add_override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rhymed.check.report import Report

LABEL = 13  # columns
WIDTH = 80
MIN_WIDTH, MAX_WIDTH = 50, 110


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed check configs/quickstart.toml", "rhymed check my.toml -o rollout.group_size=16")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file")
    parser.add_argument(
        "--assume", metavar="GPUS", help='would it fit? e.g. "8x H100 80GB", "4 nodes of 8x H100 80GB"; reads no data'
    )
    add_override(parser)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.core.config.load import load_config

    config = load_config(arguments.config, arguments.override)
    if arguments.assume is not None:
        from rhymed.check.devices import assumed_check

        report = assumed_check(config, arguments.assume)
    else:
        from rhymed.check.dryrun import full_check

        report = full_check(config)
    _print(render(report, f"rhymed check {arguments.config}", _width()))
    return 2 if report.errors else 0


def render(report: Report, title: str, width: int = WIDTH) -> Iterator[tuple[str, str]]:
    """The whole report as wrapped (style, line) pairs."""
    yield "bold", title
    for section in report.sections:
        yield "", ""
        yield "bold", section.title
        for label, text in section.rows:
            yield from (("", line) for line in _row(label, text, width))
    for style, title, texts in (("yellow", "warnings", report.warnings), ("red", "must be changed", report.errors)):
        if texts:
            yield "", ""
            yield style, f"{title} ({len(texts)})"
            for text in texts:
                yield from (("", line) for line in _wrap(text, width, "  * ", "    "))
    yield "", ""
    if report.errors:
        yield "red", "not ready: see above"
    else:
        yield "green", "ready to run" + (", but see the warnings" if report.warnings else "")


def _row(label: str, text: str, width: int) -> Iterator[str]:
    indent = " " * (LABEL + 2)
    head = f"  {label:<{LABEL}}"
    if len(label) > LABEL - 1:  # a long label gets its own line
        yield head
        head = indent
    for number, line in enumerate(text.split("\n")):
        yield from _wrap(line, width, indent if number else head, indent)


def _wrap(line: str, width: int, first: str, rest: str) -> list[str]:
    wrapped = textwrap.wrap(
        line, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
    return wrapped or [first.rstrip()]


def _width() -> int:
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def _print(lines: Iterator[tuple[str, str]]) -> None:
    from rich.text import Text

    from rhymed.core.console import Terminal

    console = Terminal(highlight=False)
    for style, line in lines:
        console.print(Text(line, style=style), soft_wrap=True)
