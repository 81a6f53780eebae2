"""The rows of the table: what is switched on, one thing after the other, as in the paper's figure. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Variant(NamedTuple):
    name: str
    policy: str
    drafts: bool
    max_staleness: int = 0
    overlap: bool = False
    sampler: str = "uniform"

    @property
    def settings(self) -> tuple[str, ...]:
        """For `rhymed run -o`."""
        method = "history" if self.drafts else "none"
        return (
            f"schedule.policy={self.policy}",
            f"drafts.method={method}",
            f"schedule.max_staleness={self.max_staleness}",
            f"trainer.overlap={str(self.overlap).lower()}",
            f"data.sampler={self.sampler}",
        )


VARIANTS = (
    Variant("plain", "fifo", False),
    Variant("scheduling", "flow", False),
    Variant("drafts", "fifo", True),
    Variant("both", "flow", True),
    Variant("overlap", "flow", True, overlap=True),
    Variant("length", "flow", True, overlap=True, sampler="length"),
    Variant("staleness 1", "flow", True, 1),
)
