"""A response in pieces: nothing is lost, no character is cut, and every piece is of one kind."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhymed.records.history.folder import Decode
from rhymed.records.history.responses import Piece, pieces_of_runs


@pytest.fixture(scope="module")
def tokenizer_of(tokenizer: Path):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizer / "tokenizer.json"))


@pytest.fixture(scope="module")
def decode(tokenizer_of) -> Decode:
    return lambda arrays: tokenizer_of.decode_batch(
        [list(map(int, one)) for one in arrays], skip_special_tokens=False
    )


@pytest.fixture(scope="module")
def tokens_of(tokenizer_of):
    """A token a byte."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = ByteLevel(add_prefix_space=False, use_regex=False)

    def encode(text: str):
        (word, _), *_ = letters.pre_tokenize_str(text)
        return np.array([tokenizer_of.token_to_id(letter) for letter in word], np.uint32)

    return encode


def pieces(decode: Decode, tokens: np.ndarray, drafted: np.ndarray | None) -> list[Piece]:
    return pieces_of_runs(decode, tokens, drafted, [0])[0]


def mask(text: str) -> np.ndarray:
    return np.array([one == "#" for one in text])


def test_it_is_cut_where_the_drafts_begin_and_end(decode: Decode, tokens_of) -> None:
    assert pieces(decode, tokens_of("how many apples"), mask("....####.......")) == [
        ("how ", False),
        ("many", True),
        (" apples", False),
    ]
    assert pieces(decode, tokens_of("yes"), mask("###")) == [("yes", True)]


def test_what_is_not_known_is_one_piece(decode: Decode, tokens_of) -> None:
    assert pieces(decode, tokens_of("ab"), None) == [("ab", None)]
    assert pieces(decode, tokens_of("ab")[:0], mask("")) == [("", None)]


@pytest.mark.parametrize(
    ("drafted", "found"),
    [
        ("...####...", [("a\U0001f34e", False), (" b", True), ("c\u00e9", False)]),
        ("#........#", [("a", True), ("\U0001f34e bc\u00e9", False)]),  # its last byte alone is no piece
        ("..#..#####", [("a\U0001f34e", False), (" bc\u00e9", True)]),  # nor are two in its middle
        (".####.....", [("a", False), ("\U0001f34e", True), (" bc\u00e9", False)]),
    ],
)
def test_a_character_stays_whole_where_it_begins(decode: Decode, tokens_of, drafted: str, found: list) -> None:
    assert pieces(decode, tokens_of("a\U0001f34e bc\u00e9"), mask(drafted)) == found


@settings(max_examples=60)
@given(tokens=st.lists(st.tuples(st.integers(0, 257), st.booleans()), max_size=60))
def test_whatever_the_tokens_are_their_text_is_whole(decode: Decode, tokens: list[tuple[int, bool]]) -> None:
    """Bytes at random are no characters, mostly."""
    ids, drafted = np.array([id for id, _ in tokens], np.uint32), np.array([reported for _, reported in tokens], bool)
    found = pieces(decode, ids, drafted)
    assert "".join(piece.text for piece in found) == decode([ids])[0]


@settings(max_examples=60)
@given(text=st.text(max_size=40), chance=st.randoms())
def test_every_character_of_a_text_is_of_the_kind_of_its_first_token(decode, tokens_of, text, chance) -> None:
    ids = tokens_of(text) if text else np.zeros(0, np.uint32)
    drafted = np.array([chance.random() < 0.5 for _ in ids], bool)
    found = pieces(decode, ids, drafted)
    assert "".join(piece.text for piece in found) == text
    if not text or "\ufffd" in text:
        return
    firsts = np.cumsum([0, *(len(letter.encode()) for letter in text)])[:-1]
    kinds = [piece.drafted for piece in found for _ in piece.text]
    assert kinds == [bool(drafted[first]) for first in firsts]
    assert all(one.drafted != other.drafted for one, other in pairwise(found))
