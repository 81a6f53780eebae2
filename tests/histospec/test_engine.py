"""Keyed sampling in a real vLLM engine (float32, chunked prefill, preemption): neither drafts, nor batches, nor steps
that are scheduled before the last one has ended change anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rhymed.histospec.sampling import noise

HERE = Path(__file__).parent
from tests.histospec.keyed_engine import prompts
from tests.packages import needs

pytestmark = [needs("vllm"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(400)]
"""In `make test`: test_exact.py, where plain tokens are compared with transformers' logits and the noise."""


@pytest.fixture(scope="module")
def reported(tiny_model):
    command = [sys.executable, str(HERE / "keyed_engine.py"), str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_engine_does_what_is_hard(reported):
    """Samples are preempted, and drafts come."""
    assert reported["samplers"] == ["KeyedSampler", "KeyedRejectionSampler", "KeyedSampler"]
    assert min(reported["preempted"]) > 0
    assert reported["drafts"] > 500
    assert reported["late"] is True


@pytest.mark.parametrize("how", ["together", "drafted", "asynchronous"])
def test_tokens_are_those_of_a_sample_alone(reported, how):
    alone, other = reported["alone"], reported[how]
    assert [tokens for tokens, _ in other] == [tokens for tokens, _ in alone]
    assert sum(len(tokens) for tokens, _ in alone) > 300
    for (_, logprobs), (_, expected) in zip(other, alone, strict=True):
        assert logprobs == pytest.approx(expected, abs=2e-4)


def test_tokens_and_logprobs_follow_from_the_whole_distribution(reported):
    """From vLLM's own processed log-probs of all tokens, by the definition of the noise."""
    for key, rows in enumerate(reported["everything"]):
        tokens, logprobs = reported["together"][key]
        start = len(prompts()[key])
        for t, row in enumerate(rows):
            expected = int(np.argmax(row)) if key % 4 == 3 else noise.draw(np.array(row, np.float64), key, start + t)
            assert tokens[t] == expected
            assert logprobs[t] == pytest.approx(row[tokens[t]], abs=2e-4)
