"""An engine's processes have our parts however they were started; ranks that do not draft are asked without harm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.histospec.drafts.yields import Account
from rhymed.histospec.proposer import drafting_rank
from rhymed_workers.engines.extension import Extension
from rhymed_workers.engines.vllm import VllmEngine
from tests.packages import needs

ROWS: list[tuple[int, bytes]] = [(3, bytes(8))]


class Drafter:
    def __init__(self, *, drafts: bool) -> None:
        self.drafts, self.remembered = drafts, list[str]()

    def remember(self, prompt: str, context: list[int], past: list[Any]) -> None:
        self.remembered.append(prompt)

    def accounts(self, names: list[str]) -> list[Account | None]:
        return [None for _ in names]

    def take_yields(self, names: list[str]) -> list[bytes | None]:
        return [b"\1" for _ in names]


def rank(runner: Any) -> Extension:
    extension = Extension()
    extension.model_runner = runner
    return extension


@pytest.mark.parametrize("runner", [SimpleNamespace(), SimpleNamespace(drafter=Drafter(drafts=False))])
def test_a_rank_that_does_not_draft_has_nothing_to_say(runner: Any) -> None:
    """Of an earlier pipeline stage, or behind the first of the tensor-parallel ranks."""
    rank(runner).remember("p", [1], ROWS)
    assert rank(runner).accounts(["s"]) is None
    assert not getattr(getattr(runner, "drafter", None), "remembered", [])


@pytest.mark.parametrize(
    ("tensor_parallel", "drafting"), [(1, [True]), (2, [True, False]), (4, [True, False, False, False])]
)
def test_the_first_tensor_parallel_rank_of_a_stage_drafts(tensor_parallel: int, drafting: list[bool]) -> None:
    parallel = [
        SimpleNamespace(rank=rank, tensor_parallel_size=tensor_parallel) for rank in range(2 * tensor_parallel)
    ]
    assert [drafting_rank(one) for one in parallel] == 2 * drafting


async def test_the_engine_takes_the_answer_of_the_rank_that_drafts(tmp_path) -> None:
    drafter = Drafter(drafts=True)
    ranks = [rank(SimpleNamespace()), rank(SimpleNamespace()), rank(SimpleNamespace(drafter=drafter))]

    async def call(method: str, *arguments: Any) -> list[Any]:
        return [getattr(one, method)(*arguments) for one in ranks]

    engine = VllmEngine(Config(), tmp_path)
    engine._client = SimpleNamespace(call=call)
    assert await engine._call("remember", "p", [1], ROWS) is None
    assert await engine._call("accounts", ["s"]) == [(None, b"\1")]
    assert drafter.remembered == ["p"]


@needs("vllm")
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_process_has_our_parts_however_it_was_started(method: str) -> None:
    command = [sys.executable, "-m", "tests.workers.engines.started", method]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"registered": True, "keyed": True}


@needs("vllm")
@pytest.mark.slow
def test_what_a_model_copies_into_its_parameters_is_loaded() -> None:
    """As vLLM's gpt-oss does it, next to a loader, whose copies go where they went before."""
    import torch
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.model_loader.reload import layerwise

    from rhymed_workers.engines.extension import _copies_loaded

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.direct, self.viewed, self.loaded = (
                torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)]) for _ in range(3)
            )

        def load(self, value: float) -> None:
            (direct,), (viewed,), (loaded,) = self.direct, self.viewed, self.loaded
            direct.copy_(torch.full((2, 3), value))
            viewed.data.copy_(torch.full((2, 3), value))
            getattr(loaded, "weight_loader", layerwise.default_weight_loader)(loaded, torch.full((2, 3), value))

    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        model = Model()
        held = [*model.direct, *model.viewed, *model.loaded]  # as an attention function holds its sinks
        layerwise.record_metadata_for_reloading(model)
        for value in (1.0, 2.0):
            layerwise.initialize_layerwise_reload(model)
            with _copies_loaded(model):
                model.load(value)
            layerwise.finalize_layerwise_reload(model, None)
            now = [*model.direct, *model.viewed, *model.loaded]
            assert all(bool((one == value).all()) for one in now)
            assert all(one is other for one, other in zip(now, held, strict=True))


@needs("vllm")
@pytest.mark.slow
@pytest.mark.parametrize("packs", [False, True])
def test_experts_are_packed_once_with_every_update(packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`packs`: a release of vLLM that does it by itself; 0.32 packs only what it loads first."""
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as module
    from vllm.platforms import current_platform

    from rhymed_workers.engines.extension import _pack_experts

    packed: list[str] = []

    class Experts:
        def process_weights_after_loading(self, layer: str) -> None:
            packed.append(layer)

    class Method:
        moe_kernel: Any = None

        def _setup_kernel(self, layer: str, w13: int, w2: int) -> None:
            if packs or self.moe_kernel is None:
                self.moe_kernel = self.moe_kernel or SimpleNamespace(fused_experts=Experts())
                self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    monkeypatch.setattr(module, "UnquantizedFusedMoEMethod", Method)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: True)
    _pack_experts()
    method = Method()
    for load in ("first", "update", "another"):
        method._setup_kernel(layer=load, w13=1, w2=2)
    assert packed == ["first", "update", "another"]


@needs("vllm")
@pytest.mark.slow
def test_queries_of_separate_heads_are_rotated_by_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, as LFM2 gives them; vLLM 0.32 rotates them by others."""
    import torch
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    from vllm.platforms import current_platform

    from rhymed_workers.engines.extension import _rotate_heads

    if not current_platform.is_cpu():
        pytest.skip("a kernel for CPUs")
    current_platform.import_kernels()
    monkeypatch.setattr(RotaryEmbedding, "forward_cpu", RotaryEmbedding.forward_cpu)  # to be put back
    _rotate_heads()
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        rope = get_rope(32, 512, rope_parameters={"rope_theta": 1e4, "rope_type": "default"}, dtype=torch.float32)
    query, key, positions = torch.randn(7, 4, 32), torch.randn(7, 2, 32), torch.arange(3, 10)
    expected = rope.forward_native(positions, query.clone(), key.clone())
    for one, other in zip(rope.forward_cpu(positions, query.clone(), key.clone()), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
