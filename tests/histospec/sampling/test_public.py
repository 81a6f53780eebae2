"""The logits processor: its filters are vLLM's, and an engine with it draws the tokens of keyed sampling."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.histospec.test_v2 import run
from tests.packages import needs

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and torch's own


def test_filters_are_those_of_vllm() -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    from rhymed.histospec.sampling.public import filtered

    generator = torch.Generator().manual_seed(3)
    z_NV = 3 * torch.randn(200, 300, generator=generator)
    z_NV[:, 7] = z_NV[:, 8]  # equal logits
    top_k_N = torch.randint(1, 301, (200,), generator=generator)
    top_p_N = torch.rand(200, generator=generator).clamp(min=0.01)
    log_min_p_N = torch.log(0.2 * torch.rand(200, generator=generator))
    log_min_p_N[::3] = -torch.inf
    top_k_N[::5], top_p_N[::7] = 300, 1.0
    expected = z_NV.masked_fill(z_NV < (z_NV.amax(1) + log_min_p_N)[:, None], -torch.inf)
    expected = apply_top_k_top_p_pytorch(expected, top_k_N, top_p_N)
    assert torch.equal(filtered(z_NV.clone(), log_min_p_N, top_k_N, top_p_N), expected)


@needs("triton")
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_vllms_own_samplers_and_drafter_take_the_tokens_of_keyed_sampling(sharp_model: Path) -> None:
    made, expected = run(sharp_model, "public", "1"), run(sharp_model, "v1", "0")["plain"]
    assert made["stock"] is True
    assert made["plain"]["tokens"] == expected["tokens"]
    assert min(made["verified"].values()) > 0, "drafts were accepted, and rejected"
