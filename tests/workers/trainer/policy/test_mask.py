"""Every form of the mask says what the mask function says, and the function what separate sequences would."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rhymed_workers.trainer.policy import attention
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


def without_grouped_heads(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
    """The arguments of torch 2.11's `varlen_attn`, computed by sequence."""
    assert query.shape[1] == key.shape[1] == value.shape[1]
    parts = []
    for first, last, begin, end in zip(cu_seq_q, cu_seq_q[1:], cu_seq_k, cu_seq_k[1:], strict=False):
        behind = torch.arange(end - begin)[None] - torch.arange(end - begin - (last - first), end - begin)[:, None]
        seen = (behind <= window_size[1]) & (behind >= -window_size[0] if window_size[0] >= 0 else behind <= 0)
        q, k, v = (t.transpose(0, 1) for t in (query[first:last], key[begin:end], value[begin:end]))
        part = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
        parts.append(part.transpose(0, 1))
    return torch.cat(parts)


def with_grouped_heads(query, key, value, *others, scale=None, window_size=(-1, -1), enable_gqa=False):  # type: ignore[no-untyped-def]
    """The arguments of torch 2.13's."""
    groups = query.shape[1] // key.shape[1]
    assert enable_gqa or groups == 1
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    return without_grouped_heads(query, key, value, *others, scale=scale, window_size=window_size)


@pytest.mark.parametrize("kernel", [without_grouped_heads, with_grouped_heads])
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("window", [None, 40])
def test_grouped_heads_whether_the_flash_kernel_knows_them_or_not(
    kernel: Any, heads: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    attention._arguments.cache_clear()
    attention.has_varlen.cache_clear()
    assert attention.has_varlen()
    ((batch, layout),) = layouts(drawn([40, 90], [50, 120, 3, 60, 1]), 4096)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, heads, batch.tokens, 16, generator=generator)
    key, value = torch.randn(2, 1, 2, batch.tokens, 16, generator=generator)
    found = attention.flash(query, key, value, layout, window, 0.25)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=layout.dense(window), scale=0.25, enable_gqa=True
    )
    attention._arguments.cache_clear()
    attention.has_varlen.cache_clear()
    assert torch.allclose(found, expected, atol=1e-5)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **kwargs or {})
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


@given(samples=groups(), window=windows, tile=st.sampled_from([1, 2, 5, 16, 128]))
@pytest.mark.thorough
def test_tiles_are_those_of_torch(samples: list[Sequences], window: int | None, tile: int) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "TILE", tile)
        for batch, layout in layouts(samples):
            sees, count = layout.sees(window), batch.tokens
            expected = create_block_mask(sees, None, None, count, count, device="cpu", BLOCK_SIZE=tile)
            found = layout.block_mask(window)
            assert found.seq_lengths == expected.seq_lengths
            assert found.BLOCK_SIZE == expected.BLOCK_SIZE
            for part in ("kv", "full_kv", "q", "full_q"):
                for name in (f"{part}_num_blocks", f"{part}_indices"):
                    one, other = getattr(found, name), getattr(expected, name)
                    assert torch.equal(one, other), name
                    assert one.dtype == other.dtype


def test_tiles_are_made_in_stripes() -> None:
    ((batch, layout),) = layouts(drawn([400, 300], [900, 800, 600], common=200), 4096)
    with Largest() as largest:
        layout.block_mask(300)
    assert largest.numbers <= masks.TILE * batch.tokens


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


def test_layouts_and_windows_are_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """After eight variants of a function torch compiles no more, and attention that is not fused follows."""
    from torch._dynamo.testing import CompileCounter
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(flex_attention, dynamic=True, backend=counter)
    monkeypatch.setattr(attention, "_compiled", lambda: compiled)
    shapes: list[tuple[list[int], list[int], int | None]] = [
        ([40], [60, 50], None),
        ([40, 90], [50, 120, 3, 60, 1], 70),
        ([300], [10, 20, 30, 40], None),
        ([5, 6, 7], [90] * 6, 33),
    ]
    for number, (prompts, responses, window) in enumerate(shapes):
        ((batch, layout),) = layouts(drawn(prompts, responses, number, common=20 * (number % 3)), 4096)
        query, key, value = (torch.randn(1, heads, batch.tokens, 16) for heads in (6, 3, 3))
        with torch.no_grad():
            found = attention.flex(query, key, value, layout, window, 0.25)
        expected = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=layout.dense(window), scale=0.25, enable_gqa=True
        )
        assert torch.allclose(found, expected, atol=1e-5)
    assert counter.frame_count == 1
