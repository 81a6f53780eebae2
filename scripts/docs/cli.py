"""docs/cli.md: every command, from the parsers themselves (`python -m scripts.docs.cli`).

Made of what the parsers hold, not of what argparse prints: that differs from one Python to the next.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rhymed.start import cli

HEAD = """# Commands

Every command and option, generated from the parsers (`make docs`); `rhymed COMMAND --help` prints the same. Commands
that read a run use `runs/latest` by default, a link to the newest run of `rhymed run`.

Exit status: 0 done, 1 failed, 2 something that you have to change, 130 interrupted. Any key of the
[settings](config.md) can be changed with `-o section.key=value`, or by the environment (`RHYMED_SECTION__KEY=value`).
"""

STANDARD = ("positional arguments", "options")
"""Groups that argparse creates; all others have a title of our own."""


def page() -> str:
    """The whole page."""
    return "\n".join((HEAD, *(line for parser, about in commands() for line in _command(parser, about))))


def commands() -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Each command that is no group, with its description in `--help`: `rhymed run`, `rhymed history show`, ..."""
    return _below(cli.parser(), "")


def _below(parser: argparse.ArgumentParser, about: str) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    verbs = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
    if verbs is None:
        yield parser, about
        return
    helps = {choice.dest: choice.help or "" for choice in verbs._choices_actions}
    for name, one in verbs.choices.items():
        yield from _below(one, helps[name])


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """The command lines at the end of its help text, with comments."""
    lines = (parser.epilog or "").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("example")]


def _command(parser: argparse.ArgumentParser, about: str) -> Iterator[str]:
    yield f"## `{parser.prog}`\n"
    yield f"{about[:1].upper()}{about[1:]}.\n"
    yield f"```text\n{_usage(parser)}\n```\n"
    for title, rows in _tables(parser):
        if title:
            yield f"{title.capitalize()}:\n"
        yield "\n".join(("| argument | meaning |", "|---|---|", *rows)) + "\n"
    if lines := examples(parser):
        yield "\n".join(("```bash", *lines, "```\n"))


def _tables(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """One table without a title, and one for each group with its own title."""
    rows: dict[str, list[str]] = {}
    for group in parser._action_groups:
        title = "" if group.title in STANDARD else group.title or ""
        rows.setdefault(title, []).extend(row for action in group._group_actions if (row := _row(action)))
    return ((title, found) for title, found in rows.items() if found)


def _usage(parser: argparse.ArgumentParser) -> str:
    """Required arguments, and optional ones in brackets; the options are in the table."""
    parts = [parser.prog]
    for action in parser._actions:
        if action.option_strings:
            if action.required:
                parts += [action.option_strings[0], _value(action)]
            continue
        name, repeated = _value(action), {"*": " ...", "+": " ..."}.get(str(action.nargs), "")
        parts.append(f"[{name}{repeated}]" if action.nargs in ("?", "*") else f"{name}{repeated}")
    return " ".join((parts[0], "[OPTIONS]", *parts[1:]))


def _row(action: argparse.Action) -> str:
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
        return ""
    value = "" if action.nargs == 0 else f" {_value(action)}"
    name = ", ".join(f"`{option}{value}`" for option in action.option_strings) or f"`{_value(action)}`"
    about = (action.help or "") % {**vars(action), "prog": "rhymed"}
    unsaid = [f"`{choice}`" for choice in action.choices or () if str(choice) not in about]
    text = "; ".join(part for part in (about, unsaid and f"one of {', '.join(unsaid)}") if part)
    return f"| {name} | {text.replace('|', chr(92) + '|')} |"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return action.dest.upper()


if __name__ == "__main__":
    print(page(), end="")
