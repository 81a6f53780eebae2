"""Captured batch sizes: what vLLM makes of them, and what the budget learns from an engine that pads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rhymed.histospec import graphs
from rhymed.histospec.drafts.budget import Budget, CostCurve

SIZES = graphs.capture_sizes(16, 15)


@pytest.mark.parametrize(
    ("longest", "expected"), [(32, 31), (31, 31), (30, 15), (16, 15), (8, 7), (7, 7), (5, 5), (128, 127)]
)
def test_draft_lengths_give_multiples_of_a_tile(longest, expected):
    assert graphs.draft_length(longest) == expected


@pytest.mark.parametrize(("requests", "drafts"), [(1, 31), (64, 31), (256, 7), (1000, 15), (3, 5)])
def test_sizes_are_few_multiples_that_hold_plain_decoding_of_all_requests(requests, drafts):
    sizes = graphs.capture_sizes(requests, drafts)
    assert sizes == sorted(set(sizes))
    assert all(size % (1 + drafts) == 0 for size in sizes)
    assert sizes[-1] >= requests
    assert sizes[-1] <= requests * (1 + drafts)
    assert len(sizes) <= 40
    assert np.diff([0, *sizes]).max() <= max(1 + drafts, sizes[-1] // 8 + 1 + drafts)


def test_without_graphs_there_are_no_sizes():
    config = SimpleNamespace(cudagraph_mode=SimpleNamespace(name="NONE"), cudagraph_capture_sizes=[8])
    assert graphs.captured(config) == []
    assert graphs.captured(None) == []
    config.cudagraph_mode.name = "FULL"
    assert graphs.captured(config) == [8]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("requests", [16, 64, 200])
def test_vllm_pads_every_batch_to_a_captured_size_and_prompts_are_in_no_full_graph(requests):
    """Its own configuration and dispatcher, with drafts of different lengths and without any. In a full graph the
    attention to a prompt is wrong."""
    pytest.importorskip("vllm")
    from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    drafts = graphs.draft_length(32)
    config = CompilationConfig(**graphs.compilation(requests, drafts), mode=CompilationMode.VLLM_COMPILE)
    config.set_splitting_ops_for_v1(all2all_backend="naive")
    sizes = list(config.cudagraph_capture_sizes)
    config.max_cudagraph_capture_size = sizes[-1]
    mode = config.resolve_cudagraph_mode_and_sizes(AttentionCGSupport.ALWAYS, "backend", 1 + drafts)
    assert mode == CUDAGraphMode.FULL_AND_PIECEWISE
    assert graphs.captured(config) == sizes, "vLLM drops and rounds none"
    dispatcher = CudagraphDispatcher(
        SimpleNamespace(
            compilation_config=config,
            num_speculative_tokens=drafts,
            speculative_config=SimpleNamespace(num_speculative_tokens=drafts),
            lora_config=None,
            scheduler_config=SimpleNamespace(max_num_seqs=requests),
        )
    )
    dispatcher.initialize_cudagraph_keys(mode, 1 + drafts)
    for tokens in (1, requests, requests + 1, sizes[-1] - 5, sizes[-1]):
        found, batch = dispatcher.dispatch(tokens)
        assert found == CUDAGraphMode.PIECEWISE
        assert batch.num_tokens == CostCurve(4096, sizes).filled(tokens)
    assert dispatcher.dispatch(1 + drafts, uniform_decode=True)[0] == CUDAGraphMode.FULL
    assert dispatcher.dispatch(sizes[-1] + 1)[0] == CUDAGraphMode.NONE


def staircase(tokens):
    """An engine with graphs up to the largest size: padding costs as tokens do. Above, launches cost 4 ms more."""
    padded = next((size for size in SIZES if size >= tokens), tokens)
    return 0.005 + 0.00002 * padded + (0.004 if tokens > SIZES[-1] else 0.0)


def learned(captured):
    curve, rng = CostCurve(1024, captured), np.random.default_rng(1)
    for _ in range(800):
        tokens = int(rng.integers(16, 400))
        curve.observe(16, tokens, staircase(tokens) * rng.lognormal(0, 0.02))
    return curve


def test_the_curve_has_the_stairs_and_the_cliff():
    curve = learned(SIZES)
    assert set(SIZES) <= set(curve.knots)
    for tokens in (17, 32, 33, 200, SIZES[-1], SIZES[-1] + 1, 380):
        assert curve.predict(16, tokens) == pytest.approx(staircase(tokens), rel=0.05)
    step = curve.predict(16, SIZES[-1] + 1) - curve.predict(16, SIZES[-1])
    assert step == pytest.approx(0.004, rel=0.15)


def test_a_budget_fills_the_step_that_it_pays_for():
    budget, rng = Budget(1024, captured=SIZES), np.random.default_rng(2)
    survival = np.tile((0.9 ** np.arange(1, 16)).astype(np.float32), (16, 1))
    totals = []
    for _ in range(300):
        lengths = budget.choose(survival, np.full(16, 15, np.int32))
        tokens = 16 + int(lengths.sum())
        made = 16 + round(float(survival[np.arange(15) < lengths[:, None]].sum()))
        budget.observe(16, tokens, staircase(tokens) * rng.lognormal(0, 0.05), made)
        totals.append(tokens)
    drafted = [tokens for tokens in totals if tokens > 16]
    assert len(drafted) > 200
    assert all(tokens in SIZES for tokens in drafted)
    assert max(drafted) <= SIZES[-1]
