"""The sampler's part in vLLM's model runner V2, without an engine; with one: tests/histospec/test_v2.py."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from rhymed.histospec.sampling import runner_v2

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and torch's own

CASES = {
    "no drafts": ([[7], [8]], [[5], [6]], [1, 1]),
    "the first is wrong": ([[7, 8, 9]], [[5, 6, 8]], [1]),
    "all are right": ([[7, 8, 9]], [[5, 7, 8]], [3]),
    "the next request's input is no draft": ([[7, 8], [9, 3]], [[5, 7], [8, 9]], [2, 2]),
    "right ones after a wrong one": ([[7, 8, 9, 4]], [[5, 7, 6, 9]], [2]),
    "placeholders are never right": ([[7, 8]], [[5, -1]], [1]),
    "of different lengths": ([[1], [2, 3, 4], [5, 6]], [[9], [9, 2, 3], [9, 4]], [1, 3, 1]),
    "the first row is no draft of the last one": ([[9, 1]], [[1, 9]], [2]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_drafts_are_accepted_up_to_the_first_that_is_not_drawn(case):
    """`inputs`: of each request its last token, then its drafts."""
    drawn, inputs, expected = case
    token_N, input_N = (torch.tensor([token for one in rows for token in one]) for rows in (drawn, inputs))
    place_N = torch.tensor([at for one in drawn for at in range(len(one))], dtype=torch.int32)
    tokens, counts = runner_v2.accepted(token_N, input_N.to(torch.int32), place_N, len(drawn), 4)
    assert counts.tolist() == expected
    assert counts.dtype == torch.int32
    assert [row[: len(one)] for row, one in zip(tokens.tolist(), drawn, strict=True)] == drawn
    assert tokens.shape == (len(drawn), 4)


@pytest.mark.parametrize("word", [0, 5, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_key_is_the_same_64_bits_as_int64(word):
    assert torch.tensor([runner_v2.signed(word)]).numpy().view("uint64")[0] == word
