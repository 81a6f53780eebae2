"""Results of a check: sections of labelled lines, errors and warnings. Knows no terminal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from rhymed.core.errors import RhymedError

Result = TypeVar("Result")

Rows = list[tuple[str, str]]
"""(label, text); a text may have several lines."""

GIB = 1 << 30


@dataclass
class Section:
    title: str
    rows: Rows = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # what must be changed
    warnings: list[str] = field(default_factory=list)

    def add(self, label: str, text: str) -> None:
        self.rows.append((label, text))


@dataclass
class Report:
    sections: list[Section] = field(default_factory=list)
    model: str = ""  # the folder of `model.path`
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, section: Section | None) -> None:
        """With its errors and warnings. None: its check has failed."""
        if section is not None:
            self.sections.append(section)
            self.errors += section.errors
            self.warnings += section.warnings

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """Its result; None if it failed, with the error in `errors`."""
        try:
            return work()
        except RhymedError as error:
            self.errors += [line for line in str(error).splitlines() if line not in self.errors]
            return None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Collects the warnings that our modules log meanwhile, each once."""
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
