"""Steps are grouped into epochs, for every view of a store by epoch."""

from __future__ import annotations

from rhymed.core.messages import EVAL
from rhymed_store.columns import ROUNDS, epochs_of, is_trained, title


def test_epochs_are_counted_over_training_steps_alone() -> None:
    numbers = epochs_of([EVAL + 4, 17, -1, 3, -2, 3, 40])
    assert numbers == {-2: -2, -1: -1, 3: 0, 17: 1, 40: 2, EVAL + 4: EVAL + 4}
    assert [title(epoch) for epoch in numbers.values()] == [
        "imported -2",
        "imported -1",
        "epoch 1",
        "epoch 2",
        "epoch 3",
        "eval v4",
    ]
    assert [title(epoch) for epoch in epochs_of([ROUNDS, ROUNDS + 1])] == ["round 1", "round 2"]
    assert [is_trained(epoch) for epoch in (-1, 0, EVAL - 1, EVAL)] == [False, True, True, False]
