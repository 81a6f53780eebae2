"""Formats entries for people: time of day, process, level unless it is info, text. Pure.

Times are local; a line with the date marks each new day. Control characters are made visible.
"""

from __future__ import annotations

import datetime

from rhymed.logs.read import Entry
from rhymed.printable import line, visible
from rhymed.text import readable

COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "1;31"}
"""ANSI, by level."""

WIDE = 11  # characters of the process column


class Formatter:
    """`line` returns the text for an entry, with line breaks. Remembers the day."""

    def __init__(self, *, colours: bool, zone: datetime.tzinfo | None = None) -> None:
        self._colours, self._zone = colours, zone
        self._day = ""

    def line(self, entry: Entry) -> str:
        moment = _moment(entry.t, self._zone)
        head = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}" if moment else " " * 12
        mark = "" if entry.level in ("info", "") else f"{line(entry.level).upper()} "
        text = readable(visible(entry.text)).replace("\n", "\n" + " " * 13)
        shown = f"{head} {line(entry.process):<{WIDE}} {mark}{text}"
        if entry.error is not None:
            message = "" if entry.error.message and entry.error.message in entry.text else entry.error.message
            trace = entry.error.traceback.rstrip() or f"{entry.error.type}: {message}"
            shown += "".join(f"\n{' ' * 13}{row}" for row in visible(trace).splitlines())
        return f"{self._date(moment)}{self._paint(shown, entry.level)}\n"

    def _date(self, moment: datetime.datetime | None) -> str:
        day = f"{moment:%Y-%m-%d}" if moment else self._day
        if day == self._day:
            return ""
        self._day = day
        return self._paint(f"-- {day}", "debug") + "\n"

    def _paint(self, text: str, level: str) -> str:
        code = COLOURS.get(level)
        return f"\033[{code}m{text}\033[0m" if self._colours and code else text


def _moment(t: str, zone: datetime.tzinfo | None) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(t).astimezone(zone)
    except ValueError:
        return None
