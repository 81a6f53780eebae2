"""Metrics of the calls that a step's samples made; names as in docs/metrics.md. Pure accounting.

Names of tools come from what policies write and from users' code, so only those that a call really reached have
metrics of their own, and only the first `MOST`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rhymed.messages import Call

MOST = 64  # tools


class ToolMeter:
    """Calls of one tool that reached it: one that is not there, or that cannot be read, takes no time."""

    __slots__ = ("calls", "errors", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.seconds = 0.0


class ToolMeters:
    """Of one step."""

    def __init__(self) -> None:
        self._tools: defaultdict[str, ToolMeter] = defaultdict(ToolMeter)
        self._all = ToolMeter()
        self._refused = 0
        self._longest = 0.0

    def add(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._count(self._all, call)
            self._refused += not call.seconds
            self._longest = max(self._longest, call.seconds)
            if call.seconds and (call.name in self._tools or len(self._tools) < MOST):
                self._count(self._tools[call.name], call)

    def read(self) -> dict[str, float]:
        """Empty without calls."""
        whole = self._all
        if not whole.calls:
            return {}
        found = {
            "tools/calls": float(whole.calls),
            "tools/error_rate": whole.errors / whole.calls,
            "tools/refused_rate": self._refused / whole.calls,
        }
        if reached := whole.calls - self._refused:
            found |= {"timing_s/call": whole.seconds / reached, "timing_s/call_max": self._longest}
        for name, tool in sorted(self._tools.items()):
            found[f"tools/{name}/calls"] = float(tool.calls)
            found[f"tools/{name}/error_rate"] = tool.errors / tool.calls
            found[f"timing_s/call/{name}"] = tool.seconds / tool.calls
        return found

    @staticmethod
    def _count(meter: ToolMeter, call: Call) -> None:
        meter.calls += 1
        meter.errors += bool(call.error)
        meter.seconds += call.seconds
