"""Writes docs/ledger.md from the transition table: `make docs`."""

from __future__ import annotations

from rhymed_broker.states import diagram


def page() -> str:
    """docs/ledger.md."""
    return f"""# The ledger

The states of a sample and its transitions. Generated from the table in `rhymed_broker/states.py`:
`make docs`.

```mermaid
{diagram()}
```

`returned`: the sample's worker was lost, left, or gave it back. After `schedule.max_retries` failures, or when more than
`schedule.max_losses` workers died with it and it made no progress, it is dropped instead.
`found_…`: the store's journal already contained the sample when its step was opened, after a restart of the broker or the
trainer. A sample that was trained after the trainer's last checkpoint is found as scored, and trained again.
"""


if __name__ == "__main__":
    print(page(), end="")
