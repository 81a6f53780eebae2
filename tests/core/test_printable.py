"""Text of others on its way to a terminal, a log or a page."""

import io
import json
import logging
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import rhymed
from rhymed.core.console import Terminal
from rhymed.core.output import show, show_json
from rhymed.core.printable import indented, json_visible, line, visible
from rhymed.core.service.logfile import JsonLine, PlainLine

HOSTILE = "a\x1b]0;title\x07\x9b2J\x7f\r\n-- forged\u202egnp\u2066\u200f\u200b\ud800"
STEERING = [c for c in HOSTILE if not c.isprintable()]


def is_safe(text: str) -> bool:
    return all(c.isprintable() or c in "\n" for c in text)


def test_one_line_of_bounded_length() -> None:
    assert line("plain é 漢 text") == "plain é 漢 text"
    assert line("a\x1b[2J\nb\tc\u202e") == "a\\x1b[2J\\nb c\\u202e"
    assert line(HOSTILE).isprintable()
    assert line("x" * 1_000_000, 10) == "x" * 9 + "…"
    assert len(line("\n" * 1_000_000, 10)) == 10


def test_several_lines_keep_their_breaks_and_nothing_else() -> None:
    assert visible("a\n\tb\x1b") == "a\n b\ufffd"
    assert is_safe(visible(HOSTILE))
    assert indented("a\n-- b") == "a\n    -- b"


def test_spaces_of_other_widths_stay() -> None:
    text = "漢字\u3000漢字, 1\u202f000\u00a0km"
    assert visible(text) == line(text) == text
    assert visible("a\u2028b\u200bc") == "a\ufffdb\ufffdc"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_the_same_on_every_terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding=encoding, errors="replace"))
    show_json(json.dumps("é 漢 🙂", ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(out.getvalue().decode(encoding)) == "é 漢 🙂"


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_json_keeps_its_value(ensure_ascii: bool) -> None:
    text = json_visible(json.dumps({HOSTILE: HOSTILE + "\U000e0041"}, ensure_ascii=ensure_ascii, indent=1))
    assert is_safe(text)
    assert json.loads(text) == {HOSTILE: HOSTILE + "\U000e0041"}


def test_what_commands_write(capsys: pytest.CaptureFixture[str]) -> None:
    show(HOSTILE, flush=True)
    show("a\tb")
    show_json(json.dumps(HOSTILE, ensure_ascii=False))
    first, *_ = out = capsys.readouterr().out
    assert first == "a"
    assert is_safe("".join(out).replace("\t", ""))
    assert "a\tb\n" in "".join(out)


def test_a_terminal_obeys_rich_and_no_text() -> None:
    table = Table()
    table.add_column(Text(HOSTILE))
    table.add_row(Text(HOSTILE, style="red"))
    out = io.StringIO()
    for plain in (False, True):
        terminal = Terminal(file=out, force_terminal=not plain, color_system=None if plain else "standard", width=120)
        terminal.print(table)
        terminal.print(HOSTILE, markup=False, soft_wrap=True)
        terminal.print(Text(HOSTILE))
    found = out.getvalue()
    assert "\x1b[31m" in found, "rich's own colours stay"
    for steering in ("\x1b]", "\x07", "\x9b", "\x7f", "\r", "\u202e", "\u2066", "\u200f", "\u200b", "\ud800"):
        assert steering not in found


def record(text: str, error: Exception | None = None) -> logging.LogRecord:
    found = logging.LogRecord("rhymed", logging.WARNING, __file__, 1, "%s", (text,), None)
    if error is not None:
        found.exc_info = (type(error), error, None)
    found.worker = text
    return found


@pytest.mark.parametrize("text", [HOSTILE, HOSTILE.replace("\ud800", ""), "\x7f"])
def test_a_line_of_a_log_shows_nothing_raw_and_keeps_the_text(text: str) -> None:
    found = JsonLine("broker", {}).format(record(text, ValueError(text)))
    assert is_safe(found)
    assert "\n" not in found
    assert json.loads(found)["text"] == json.loads(found)["worker"] == text


def test_a_line_on_a_terminal_forges_no_other() -> None:
    found = PlainLine().format(record(HOSTILE, ValueError(HOSTILE)))
    assert is_safe(found)
    assert all(row.startswith("    ") for row in found.splitlines()[1:])


def test_there_is_one_gate() -> None:
    """Who asks whether a character is printable decides what is shown: that is done in one place."""
    root = Path(rhymed.__file__).parents[1]
    files = (path for room in ("rhymed", "broker", "store", "workers") for path in (root / room).rglob("*.py"))
    found = {path.relative_to(root).as_posix() for path in files if "isprintable" in path.read_text()}
    quoting = "rhymed/core/text.py"  # a string of TOML
    assert found == {"rhymed/core/printable.py", "rhymed/core/console.py", quoting}
