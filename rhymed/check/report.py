"""What a check found: sections of labelled lines, what must be changed, what is worth knowing. Knows no terminal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from rhymed.errors import RhymedError

Result = TypeVar("Result")

Rows = list[tuple[str, str]]
"""(label, text); a text of several lines stays so."""

GIB = 1 << 30


@dataclass
class Section:
    title: str
    rows: Rows = field(default_factory=list)

    def add(self, label: str, text: str) -> None:
        self.rows.append((label, text))


@dataclass
class Report:
    sections: list[Section] = field(default_factory=list)
    model: str = ""  # what `model.path` came to
    wrong: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def section(self, title: str) -> Section:
        self.sections.append(Section(title))
        return self.sections[-1]

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """The result, or None after its error was noted."""
        try:
            return work()
        except RhymedError as error:
            self.wrong += [line for line in str(error).splitlines() if line not in self.wrong]
            return None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """What our modules log as a warning meanwhile is noted here, each once."""
        report, logger = self, logging.getLogger("rhymed")

        class Notes(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if (text := record.getMessage()) not in report.warnings:
                    report.warnings.append(text)

        notes = Notes(logging.WARNING)
        logger.addHandler(notes)
        before, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.removeHandler(notes)
            logger.propagate = before


def gib(size: float) -> str:
    """Bytes for people."""
    if size < GIB / 10:
        return f"{size / (1 << 20):.{0 if size > 10 << 20 else 1}f} MiB"
    return f"{size / GIB:.1f} GiB"
