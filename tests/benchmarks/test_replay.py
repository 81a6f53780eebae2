import dataclasses

import numpy as np
import pytest

from benchmarks.replay import IndexDrafter, Score, replay
from benchmarks.traces import Response, Trace, load, synthetic
from rhymed.core.config import Config
from rhymed.core.messages import EVAL, SampleId
from rhymed_workers.engines.base import seed_of
from tests.records.history.folders import two_epochs, write_store


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


def test_in_the_first_epoch_responses_of_other_prompts_are_drafts(trace):
    text = trace.of(1)[0].tokens
    responses = [Response(prompt, 1, 0, 0.0, text) for prompt in range(4)]
    prompts = [np.array([prompt], np.int32) for prompt in range(4)]
    alone, together = Score(), Score()
    replay(IndexDrafter(Trace(prompts, responses), responses, 1, recent=0), responses, alone, batch=1)
    replay(IndexDrafter(Trace(prompts, responses), responses, 1), responses, together, batch=1)
    assert together.accepted > len(text) > alone.accepted


def test_a_runs_folder_is_a_trace_with_the_keys_of_its_noise(tmp_path):
    samples = [*two_epochs(), (EVAL, two_epochs()[0][1], 0, [5, 6], 1.0)]
    write_store(tmp_path, samples)
    config = {"model": {"path": "model"}, "data": {"path": "rows.jsonl"}, "run": {"seed": 3}}
    (tmp_path / "config.json").write_text(Config.model_validate(config).model_dump_json())
    trace = load(tmp_path)
    assert trace.epochs == [0, 1]
    assert [prompt.tolist() for prompt in trace.prompts] == [[0, 1, 2]] * 2
    recorded = {(r.epoch, r.sample, tuple(r.tokens.tolist()), r.reward, r.key) for r in trace.responses}
    assert recorded == {
        (step // 2, index, tuple(tokens), reward, seed_of(3, SampleId(step, prompt, index)))
        for step, prompt, index, tokens, reward in two_epochs()
    }


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
