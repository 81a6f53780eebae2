"""What an audit checks of samples in turns: that turns and rows are those of their tokens, and nothing is left over.

Turns of a sample that was dropped before its end stay in the store until a checkpoint covers its step: no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rhymed.history.folder import RunFolder
from rhymed.text import counted
from rhymed_store.inspect.browse import Response
from rhymed_workers.trainer.turns import problem


class Turns:
    """`counts`: of the samples that were checked."""

    def __init__(self, folder: RunFolder) -> None:
        self._expected = folder.config is not None and folder.config.environment.active
        self._open = set(folder.browse.in_progress())
        self.counts: Counter[str] = Counter()

    def faults(self, response: Response) -> Iterator[str]:
        """Of a complete sample."""
        info = response.info
        if why := problem(info):
            yield f"sample {info.id} has {why}"
        elif self._expected and not info.turns:
            yield f"sample {info.id} has no turns, though the run has an environment: whose its tokens are is lost"
        if info.id in self._open:
            yield f"sample {info.id} is complete, and the store has turns of it that are in progress"
        if info.turns:
            given = info.length - info.learned
            self.counts += Counter(samples=1, turns=info.turn_count, rows=1 + len(info.forks), given=given)

    def line(self) -> str:
        """Empty without samples in turns."""
        found = self.counts
        if not found["samples"]:
            return ""
        more = found["rows"] - found["samples"]
        rows = f" and {counted(more, 'further row')}" if more else ""
        return (
            f"in turns: {counted(found['samples'], 'sample')} of {counted(found['turns'], 'turn')}{rows},"
            f" {counted(found['given'], 'token')} of environments"
        )
