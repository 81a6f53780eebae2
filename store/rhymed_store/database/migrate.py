"""From the schema that a folder has to the one that this release writes: a step a version, all in one transaction.

Run by the one writer when it opens a folder. What a `Reader` may read is told here as well: between these schemas
differ only tables that it never looks into, and records that tell by themselves what they have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from rhymed.errors import StoreError
from rhymed_store.codec.records import SCHEMA

READABLE = (1, 2, 3)

Migration: TypeAlias = Callable[[Any, dict[str, Any]], None]


def _beginnings_in_chunks(txn: Any, tables: dict[str, Any]) -> None:
    """1 -> 2: beginnings live for seconds, those of before are not worth a conversion. Records without a checksum
    stay: a flag tells which have one."""
    txn.drop(tables["partials"], delete=False)


def _drafts_beside_tokens(txn: Any, tables: dict[str, Any]) -> None:
    """2 -> 3: a record may tell of a mask behind its tokens. Those of before have none, and stay as they are."""


MIGRATIONS: dict[int, Migration] = {1: _beginnings_in_chunks, 2: _drafts_beside_tokens}
"""Schema -> what makes it the next one."""


def migrate(txn: Any, tables: dict[str, Any], found: int) -> None:
    """To `SCHEMA`, from one that `check` let pass."""
    for schema in range(found, SCHEMA):
        MIGRATIONS[schema](txn, tables)


def check(folder: Path, found: int) -> None:
    """Raises `StoreError` for a schema that this release can neither read nor migrate."""
    if found > SCHEMA:
        raise StoreError(
            f"{folder} is of schema {found}, made by a newer release; this one reads up to {SCHEMA}: install the"
            " newer release, or use a new run"
        )
    if found not in READABLE:
        raise StoreError(
            f"{folder} is of schema {found}, this release reads {READABLE[0]} to {SCHEMA}; use a new run"
        )
