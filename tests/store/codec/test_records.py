from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed.core.messages import SampleId, SampleInfo
from rhymed_store.codec import frames, masks, records

prompts = st.binary(min_size=8, max_size=8).map(bytes.hex)
steps = st.integers(-(2**31), 2**31 - 1)
ids = st.builds(SampleId, steps, prompts, st.integers(0, 2**16 - 1))
runs = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(1, 2**16)), max_size=5)
largest = st.sampled_from([1, 255, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**32 - 1])
responses = largest.flatmap(lambda top: st.lists(st.lists(st.integers(0, top), max_size=40), max_size=6))


@given(responses=responses, level=st.sampled_from([-5, 0, 1, 3]))
def test_tokens_round_trip(responses: list[list[int]], level: int) -> None:
    tokens = np.array([token for response in responses for token in response], np.uint32)
    frames, width = records.pack_tokens(tokens, [len(response) for response in responses], level)
    for response, frame in zip(responses, frames, strict=True):
        out = np.empty(len(response), np.uint32)
        records.unpack_tokens(frame, width, out, "it")
        assert out.tolist() == response


@given(
    versions=runs,
    position=st.integers(0, 2**64 - 1),
    size=st.integers(0, 2**32 - 1),
    width=st.sampled_from([2, 3, 4]),
    finish=st.sampled_from(records.FINISHES),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    drafted=st.integers(0, 2**32 - 1),
)
def test_record_round_trip(versions, position, size, width, finish, reward, drafted) -> None:  # type: ignore[no-untyped-def]
    length = sum(count for _, count in versions)
    info = SampleInfo(
        id=SampleId(3, "0" * 16, 1), prompt_length=9, length=length, finish_reason=finish, versions=versions
    )
    record = records.new_record(info, 77, position, size, width, drafted)
    if reward is not None:
        record = record.scored(reward)
    key = records.sample_key(info.id)
    packed = record.pack(key)
    again = records.unpack_record(memoryview(key), memoryview(packed))
    assert again == record
    assert (again.width, again.position, again.size, again.prompt_check) == (width, position, size, 77)
    assert again.drafted == drafted
    assert again.state == ("generated" if reward is None else "scored")
    assert records.unpack_length(packed) == length
    shown = again.info(info.id)
    assert shown.reward == reward
    assert (shown.versions, shown.finish_reason, shown.length) == (versions, finish, length)


@given(samples=st.lists(ids, max_size=20))
def test_keys_sort_as_their_samples(samples: list[SampleId]) -> None:
    by_key = sorted(samples, key=records.sample_key)
    assert by_key == sorted(samples, key=lambda s: (s.prompt, s.step, s.index))
    by_journal = sorted(samples, key=records.journal_key)
    assert by_journal == sorted(samples, key=lambda s: (s.step, s.prompt, s.index))
    assert [records.sample_at(records.sample_key(s), s.prompt) for s in samples] == samples


@given(sample=ids, runs=runs, state=st.sampled_from(records.STATES), reward=st.none() | st.floats(-1e9, 1e9))
def test_journal_round_trip(sample, runs, state, reward) -> None:  # type: ignore[no-untyped-def]
    line = records.pack_journal(state, 12, runs, reward)
    entry = records.unpack_journal(records.journal_key(sample), line)
    assert (entry.id, entry.state, entry.length, entry.reward) == (sample, state, 12, reward)
    assert entry.oldest_version == min((version for version, _ in runs), default=0)


@pytest.mark.parametrize("prompt", ["", "ab", "g" * 16, "AB" * 8, "ab cdef012345678", "0" * 18])
def test_a_wrong_prompt_id_is_refused(prompt: str) -> None:
    with pytest.raises(MalformedMessage, match="16 lower-case hex"):
        records.prompt_key(prompt)


@pytest.mark.parametrize(
    "sample", [SampleId(2**31, "0" * 16, 0), SampleId(0, "0" * 16, -1), SampleId(0, "0" * 16, 65536)]
)
def test_an_id_out_of_range_is_refused(sample: SampleId) -> None:
    with pytest.raises(MalformedMessage, match="sample"):
        records.sample_key(sample)


@example(position=4, flip=129)  # a size of 2 GiB and more, in the frame's header
@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_any_damaged_byte_is_noticed(position: int, flip: int) -> None:
    tokens = np.arange(300, dtype=np.uint32) * 7 % 5000
    (frame,), width = records.pack_tokens(tokens, [300], 1)
    damaged = bytearray(frame)
    damaged[position % len(frame)] ^= flip
    out = np.zeros(300, np.uint32)
    try:
        records.unpack_tokens(bytes(damaged), width, out, "sample x")
    except StoreDamaged as error:
        assert "sample x" in str(error)  # noqa: PT017
    else:
        assert out.tolist() == tokens.tolist()  # a bit of the frame that means nothing


def test_a_size_that_no_frame_of_this_length_holds_is_damage() -> None:
    """Where the size is not known otherwise: nothing is allocated for it."""
    zeros = frames.pack_bytes(bytes(1 << 24), 1)
    assert frames.unpack_bytes(zeros, "row") == bytes(1 << 24), "as dense as frames are"
    damaged = bytearray(frames.pack_bytes(bytes(1 << 17), 1))
    damaged[5:9] = b"\xff" * 4
    with pytest.raises(StoreDamaged, match="4294967295 bytes claimed by"):
        frames.unpack_bytes(bytes(damaged), "row")


drafts = st.one_of(
    st.lists(st.booleans(), max_size=300), st.tuples(st.integers(0, 9000), st.booleans()).map(lambda t: [t[1]] * t[0])
)


@given(drafted=drafts)
def test_masks_round_trip_and_take_no_more_than_a_bit_a_token(drafted: list[bool]) -> None:
    given, bits = np.array(drafted, bool), np.packbits(np.array(drafted, bool)).tobytes()
    packed = masks.pack(bits)
    assert len(packed) <= 5 + masks.bytes_of(len(drafted)) == 5 + len(bits)
    np.testing.assert_array_equal(masks.unpack(packed, len(drafted), "it"), given)
    if len(set(drafted)) == 1:
        assert len(packed) < 40, "nothing, or all of it, was drafted"


@given(drafted=drafts, position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_any_damaged_byte_of_a_mask_is_noticed(drafted: list[bool], position: int, flip: int) -> None:
    packed = bytearray(masks.pack(np.packbits(np.array(drafted, bool)).tobytes()))
    packed[position % len(packed)] ^= flip
    with pytest.raises(StoreDamaged, match="sample x: which tokens were drafted"):
        masks.unpack(bytes(packed), len(drafted), "sample x")
    for cut in (packed[:-1], packed[:4], b""):
        with pytest.raises(StoreDamaged, match="sample x"):
            masks.unpack(bytes(cut), len(drafted), "sample x")


def test_a_mask_of_another_length_is_damage() -> None:
    packed = masks.pack(np.packbits(np.ones(4000, bool)).tobytes())
    for length in (3000, 5000):
        with pytest.raises(StoreDamaged, match=r"which tokens were drafted .* were written"):
            masks.unpack(packed, length, "sample x")


def test_late_scores_do_not_undo_an_end() -> None:
    info = SampleInfo(id=SampleId(0, "0" * 16, 0), prompt_length=0, length=0, finish_reason="stop", versions=[])
    record = records.new_record(info, 0, 0, 0, 2).marked("dropped").scored(1.0)
    assert record.state == "dropped"
    assert record.info(info.id).reward == 1.0


def test_a_reward_must_be_a_number() -> None:
    for wrong in (None, float("nan"), float("inf")):
        with pytest.raises(MalformedMessage, match="finite"):
            records.check_reward(wrong, "3/x/1")
