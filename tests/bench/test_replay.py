import dataclasses

import numpy as np
import pytest

from rhymed.bench.replay import IndexDrafter, Score, replay
from rhymed.bench.traces import Trace, load, synthetic


@pytest.fixture(scope="module")
def trace():
    return synthetic(prompts=3, samples=3, epochs=2)


def test_every_recorded_token_is_generated_once_whatever_is_drafted(trace):
    responses = trace.of(2)
    length = sum(len(response.tokens) for response in responses)
    for floor in (0.0, 0.5, 1.1):
        score = Score()
        replay(IndexDrafter(trace, responses, 2), responses, score, floor, batch=4)
        assert score.generated == length
        assert score.accepted <= score.verified
        assert score.forwards <= length
        if floor > 1:
            assert (score.forwards, score.verified) == (length, 0)
        else:
            assert score.per_forward > 1.5


def test_a_repeated_response_is_drafted_to_its_end(trace):
    last = [r for r in trace.of(1) if r.sample == 0]
    again = Trace(trace.prompts, last)
    score = Score()
    replay(IndexDrafter(again, last, 2), last, score)
    assert score.accepted == score.verified
    assert score.forwards <= sum(len(r.tokens) // 32 + 1 for r in last)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_trace_comes_back_from_its_file(trace, tmp_path, keyed):
    rows = [dataclasses.replace(r, key=number) for number, r in enumerate(trace.responses)]
    keys = {"key": np.array([r.key for r in rows], np.uint64)} if keyed else {}
    np.savez(
        tmp_path / "trace.npz",
        **keys,
        prompt_index=[r.prompt for r in rows],
        epoch=[r.epoch for r in rows],
        sample=[r.sample for r in rows],
        reward=[r.reward for r in rows],
        tokens=np.concatenate([r.tokens for r in rows]).astype(np.uint32),
        offsets=np.cumsum([0, *(len(r.tokens) for r in rows)]),
        prompt_tokens=np.concatenate(trace.prompts).astype(np.uint32),
        prompt_offsets=np.cumsum([0, *map(len, trace.prompts)]),
    )
    same = load(tmp_path / "trace.npz")
    assert all((a == b).all() for a, b in zip(same.prompts, trace.prompts, strict=True))
    for a, b in zip(same.responses, rows, strict=True):
        assert (a.prompt, a.epoch, a.sample, a.reward) == (b.prompt, b.epoch, b.sample, b.reward)
        assert a.key == (b.key if keyed else None)
        assert (a.tokens == b.tokens).all()
