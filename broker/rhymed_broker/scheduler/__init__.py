"""HistoPipe: which worker gets which samples, and when. Pure functions over a snapshot, checked by `dispatch`.

`policy.py` has the interface. `fifo` is what other systems do, `rhyme` the RhymeRL paper, `flow` the default.
"""

from rhymed_broker.scheduler.fair import FAIR, FIFO, fair
from rhymed_broker.scheduler.flow import FLOW
from rhymed_broker.scheduler.policy import Assignment, Move, Policy, Shift, Snapshot, StepQueue, WorkerView
from rhymed_broker.scheduler.rhyme import RHYME

POLICIES: dict[str, Policy] = {"fifo": FIFO, "rhyme": RHYME, "flow": FLOW}

__all__ = ["FAIR", "POLICIES", "Assignment", "Move", "Policy", "Shift", "Snapshot", "StepQueue", "WorkerView", "fair"]
