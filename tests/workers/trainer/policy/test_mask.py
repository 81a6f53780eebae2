"""Every form of the mask says what the mask function says, and the function what separate sequences would."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rhymed_workers.trainer.policy import mask as masks
from rhymed_workers.trainer.policy.mask import Layout
from rhymed_workers.trainer.policy.packing import MicroBatch, Sequences, micro_batches
from tests.workers.trainer.policy.samples import drawn, groups

CPU = torch.device("cpu")
windows = st.none() | st.integers(1, 12)


def by_hand(batch: MicroBatch, window: int | None) -> Tensor:
    seen = torch.zeros(batch.tokens, batch.tokens, dtype=torch.bool)
    for bound, prefix in zip(batch.bounds, batch.prefixes, strict=True):
        for first, last in itertools.pairwise(bound):
            own = list(range(first, last))
            before = list(range(*prefix)) + ([] if first == bound[0] else list(range(bound[0], bound[1])))
            for query in own:
                past = [*before, *own[: query - first + 1]]
                seen[query, past[-window:] if window else past] = True
    return seen


def layouts(samples: list[Sequences], micro_tokens: int = 80) -> Iterator[tuple[MicroBatch, Layout]]:
    for batch in micro_batches(samples, range(len(samples)), micro_tokens):
        yield batch, Layout(batch, CPU)


@given(groups(), windows)
def test_the_function_is_that_of_separate_sequences(samples: list[Sequences], window: int | None) -> None:
    for batch, layout in layouts(samples):
        assert torch.equal(layout.dense(window), by_hand(batch, window))


@pytest.mark.parametrize(("chunk", "alone"), [(1, 64), (3, 64), (7, 64), (512, 64), (512, 1), (7, 1), (3, 4)])
@given(samples=groups(), window=windows)
def test_blocks_cover_what_is_seen(chunk: int, alone: int, samples: list[Sequences], window: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "CHUNK", chunk)
        patch.setattr(masks, "ALONE", alone)
        for batch, layout in layouts(samples):
            found, queries = torch.zeros(batch.tokens, batch.tokens, dtype=torch.bool), []
            for block in layout.blocks(window):
                first, last = block.queries
                queries += list(range(first, last))
                keys = [key for begin, end in block.keys for key in range(begin, end)]
                added = layout.additive(block, window, torch.float32)
                if added is None:
                    assert keys[block.before :] == list(range(first, last))
                    allowed = torch.ones(len(keys), len(keys), dtype=torch.bool).tril()[block.before :]
                else:
                    allowed = added[0, 0] == 0
                assert allowed.any(-1).all()
                found[first:last, keys] = allowed
            assert queries == list(range(batch.tokens))
            assert torch.equal(found, layout.dense(window))


@given(groups())
def test_flash_kernels_get_what_is_seen(samples: list[Sequences]) -> None:
    """The kernel aligns the last query with the last key."""
    for batch, layout in layouts(samples):
        plan = layout.sequenced()
        keys = torch.arange(batch.tokens) if plan.keys_K is None else plan.keys_K
        found = torch.zeros(batch.tokens, batch.tokens, dtype=torch.bool)
        for first, last, begin, end in zip(
            plan.query_starts, plan.query_starts[1:], plan.key_starts, plan.key_starts[1:], strict=False
        ):
            for query in range(first, last):
                found[query, keys[begin : end - (int(last) - 1 - query)]] = True
            assert last - first <= plan.longest_query
            assert end - begin <= plan.longest_key
        assert torch.equal(found, layout.dense())
        alone = all(len(bound) == 3 for bound in batch.bounds)
        assert (plan.keys_K is None) == (alone and not any(last for _, last in batch.prefixes))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("common", [0, 30])
@pytest.mark.parametrize("window", [None, 70])
def test_flex_attention_sees_what_is_seen(window: int | None, common: int) -> None:
    from torch.nn.attention.flex_attention import create_mask, flex_attention

    ((batch, layout),) = layouts(drawn([40, 90], [50, 120, 3, 60, 1], common=common), 4096)
    assert torch.equal(
        create_mask(layout.sees(window), 1, 1, batch.tokens, batch.tokens, "cpu")[0, 0], layout.dense(window)
    )
    query, key, value = torch.randn(3, 1, 2, batch.tokens, 16, generator=torch.Generator().manual_seed(0))
    found = flex_attention(query, key, value, block_mask=layout.block_mask(window))
    dense = layout.dense(window)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=dense)
    assert torch.allclose(found, expected, atol=1e-5)


def test_long_rows_keep_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "ALONE", 1000)
    ((batch, layout),) = layouts(drawn([700], [900, 800, 600]), 4096)
    assert sum(block.before is None for block in layout.blocks()) == 5
    for block in layout.blocks():
        made = layout.additive(block, None, torch.float32)
        if made is not None:
            assert made.shape[2] <= masks.CHUNK
            assert made.shape[3] <= 700 + 900 + masks.CHUNK
    assert not layout._masks
    assert batch.tokens == 3000
