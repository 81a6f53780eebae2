from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rhymed_store.client import StoredSample
from rhymed_workers.trainer.distributed import orders
from tests.workers.trainer.test_learner import samples


@pytest.mark.parametrize(
    "order", [orders.Load(None), orders.Load("/a"), orders.Begin(3), orders.Train(7), orders.Gather()]
)
def test_an_order_arrives_as_it_was_given(order: orders.Order) -> None:
    assert orders.decode(orders.encode(order)) == order


def test_samples_arrive_with_all_that_a_loss_reads() -> None:
    first, second, *_ = samples(0)
    full = dataclasses.replace(
        first,
        row={"a": 1},
        parts={"math": 1.0},
        token_rewards=[(2, 0.5)],
        floors=np.full(first.info.length, -np.inf, np.float32),
    )
    bare = StoredSample(second.info, second.tokens, token_rewards=[])
    found = orders.unpack(orders.pack([full, bare]))
    for mine, other in zip(found, [full, bare], strict=True):
        for field in dataclasses.fields(StoredSample):
            one, two = getattr(mine, field.name), getattr(other, field.name)
            assert type(one) is type(two), field.name
            if isinstance(one, np.ndarray):
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(one, two)
            else:
                assert one == two
