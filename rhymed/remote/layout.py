"""What a run's copy consists of, and where: names on shared storage, and the manifests of backups.

    URL/RUN/lease.json                     which head writes here
    URL/RUN/checkpoints/step-000010-…/     a checkpoint's files; it counts when manifest.json is there, written last
    URL/RUN/backups/000003.json            a backup: the run's files as lists of chunks
    URL/RUN/chunks/ab/ab12…                their content, named by its digest
    URL/RUN/report.html                    when the run has ended

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

LEASE = "lease.json"
CHECKPOINTS, BACKUPS, CHUNKS = "checkpoints", "backups", "chunks"
PUBLISHED = ("report.html", "metrics.jsonl")  # files of the run's folder for people, when it ends
RUN_FILES = ("config.json", "id.json", "metrics.jsonl", "timeline.jsonl", "starts.jsonl")
"""Of a backup, besides the stores."""
_STORE_FILE = re.compile(r"store(-[1-9][0-9]{0,2})?/data\.mdb")


def is_kept(name: str) -> bool:
    """Whether a backup may have a file of this name."""
    return name in RUN_FILES or _STORE_FILE.fullmatch(name) is not None


class File(msgspec.Struct, frozen=True):
    bytes: int
    chunks: list[str]  # digests


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """`end` and `forgotten` count training steps, as in `rhymed_store.position`. A run continues from this backup
    with a checkpoint of at least `forgotten` steps, whose samples are all here: the store may have only some of the
    steps after `steps`."""

    number: int
    ids: list[str]  # of the run, the newest last
    steps: int  # trained, as far as its metrics show
    forgotten: int
    end: int
    at: float  # seconds since 1970
    files: dict[str, File]

    @property
    def name(self) -> str:
        return f"{self.number:06d}.json"

    @property
    def chunks(self) -> set[str]:
        return {digest for file in self.files.values() for digest in file.chunks}

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def fitting(backup: Backup, steps: Sequence[int]) -> int | None:
    """With which checkpoint the run continues from a backup: its steps; 0: none is needed; None: none fits."""
    usable = [step for step in steps if backup.forgotten <= step <= min(backup.steps, backup.end)]
    return max(usable, default=None if backup.forgotten else 0)


def needed(backups: Sequence[Backup], steps: Sequence[int], keep: int) -> set[int]:
    """Steps of the checkpoints to keep: the newest ones, and those that a backup needs."""
    pairs = {fitting(backup, steps) for backup in backups}
    return {*sorted(steps)[-keep:], *(step for step in pairs if step)}


def chunk_name(digest: str) -> str:
    return f"{digest[:2]}/{digest}"
