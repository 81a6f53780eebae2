"""Writes docs/ledger.md from the transition table: `make docs`."""

from __future__ import annotations

from rhymed_broker.states import diagram


def page() -> str:
    """docs/ledger.md."""
    return f"""# The ledger

Where a sample can be, and what moves it. Generated from the table in `rhymed_broker/states.py`:
`make docs`.

```mermaid
{diagram()}
```

`returned`: its worker is lost, left, or gave it back; after `schedule.max_retries` failures, or
more than `schedule.max_losses` workers that died with it while it came no further, it is dropped instead.
`found_…`: the store's journal already had it when its step was opened, after a restart of the broker or the trainer.
A sample that was trained after the trainer's last checkpoint is found as scored, and trained again.
"""


if __name__ == "__main__":
    print(page(), end="")
