"""The filters of the logits processor are vLLM's. What an engine draws with it: see test_v2.py."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

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
