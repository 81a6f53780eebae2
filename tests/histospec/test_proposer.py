from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from rhymed.histospec import graphs, plugin
from rhymed.histospec.proposer import HistoSpec
from rhymed.histospec.sampling import noise
from tests.histospec.sampling.fake_runner import Runner, V


def proposer_config(**settings):
    return SimpleNamespace(
        additional_config={"rhymed": settings},
        model_config=SimpleNamespace(max_model_len=512, get_vocab_size=lambda: V, dtype=torch.bfloat16),
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1),
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=4),
    )


@pytest.fixture
def proposer():
    proposer = HistoSpec(proposer_config())
    yield proposer
    proposer.close()


def runner_of(proposer, *params):
    runner = Runner(list(params))
    runner.drafter = proposer
    return runner


def test_drafts_are_made_for_the_noise_that_the_sampler_draws_by(proposer):
    """Whatever the key comes from: a request's own, its seed, or one that the engine made up."""
    own = SamplingParams(extra_args={"rhymed": {"key": 2**63 + 5}}, max_tokens=9)
    runner = runner_of(proposer, SamplingParams(seed=7), own, SamplingParams(), SamplingParams(temperature=0))
    assert plugin.attach(runner)
    counts = runner.input_batch.num_tokens_no_spec
    reported = proposer._batch([[3]] * 4, counts).noise
    assert reported.known.tolist() == [True, True, True, False]
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    drawn = runner.plain(logits.clone()).sampled_token_ids[:, 0].tolist()
    for row in range(3):
        key, position = int(reported.keys[row]), int(reported.positions[row])
        assert noise.draw(logits[row].numpy(), key, position) == drawn[row]


def test_graphs_of_the_last_cache_count(proposer):
    """vLLM makes a KV cache for its profiling run, and the one that stays after it."""
    runner = runner_of(proposer, SamplingParams())
    mode = SimpleNamespace(name="FULL")
    for sizes in ([8, 16], [8, 16], [8, 24]):
        runner.vllm_config.compilation_config = SimpleNamespace(cudagraph_mode=mode, cudagraph_capture_sizes=sizes)
        plugin.attach(runner)
        assert proposer._drafter._budget.curve.filled(sizes[1] - 1) == sizes[1]
    before = proposer._drafter._budget
    plugin.attach(runner)
    assert proposer._drafter._budget is before, "what was learned stays where nothing changed"


def test_the_budget_verifies_no_more_than_was_profiled(proposer, monkeypatch):
    assert proposer.rows == 64 + 4, "few tokens in a step"
    monkeypatch.setattr(graphs, "LOGITS_BYTES", 2 * V * 20)
    capped = HistoSpec(proposer_config())
    assert capped.rows == 20 + 4
    lengths = np.full(4, 8, np.int32)
    for _ in range(20):
        assert capped._drafter._budget.choose(np.full((4, 8), 0.99, np.float32), lengths).sum() <= 20 - 4
    capped.close()
    fixed = HistoSpec(proposer_config(budget="fixed"))
    assert fixed.rows is None
    fixed.close()


def test_vllms_own_sampler_has_no_noise_to_know(proposer):
    runner = runner_of(proposer, SamplingParams(seed=7))
    runner.vllm_config.additional_config = {"rhymed": {"keyed": False}}
    assert not plugin.attach(runner)
    assert not proposer._batch([[3]], runner.input_batch.num_tokens_no_spec).noise.known.any()
