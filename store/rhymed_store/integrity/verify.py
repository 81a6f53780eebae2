"""Reads everything that a database holds, checks it against its checksums, and names what is damaged.

Reads through a child process (see `isolated`), so damage cannot end this one, and works next to a living store: the
child's read transaction keeps the pages of its snapshot. Sound entries go to a sink, so a repair is a verification
whose findings are left out. Knows nothing of what is done with either.
"""

from __future__ import annotations

from pathlib import Path

from rhymed_store.database.probe import check_readable
from rhymed_store.integrity.checks import Audit
from rhymed_store.integrity.findings import Inspection, IntegrityReport, Sink
from rhymed_store.integrity.isolated import IsolatedReader, Unreadable

FREE = "free pages"


def verify(folder: Path, sink: Sink = lambda *_: None) -> IntegrityReport:
    """Read everything.

    Raises `StoreError` where there is no database or one of another schema, `StoreDamaged` where LMDB cannot open it.
    """
    check_readable(folder)
    with IsolatedReader(folder) as reader:
        inspection = Inspection(reader, sink)
        Audit(inspection, folder).run()
        if inspection.report.sound:  # pages below a damaged one cannot be counted
            try:
                reader.check_pages()
            except Unreadable as error:
                inspection.add(FREE, "the list", f"pages are lost, or both free and in use: {error}")
        return inspection.report
