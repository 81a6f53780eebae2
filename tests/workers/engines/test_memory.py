"""The order of calls to vLLM around sleep on a GPU, and the storage of a KV cache on a CPU, freed and rebuilt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rhymed_workers.engines.memory import EngineMemory, Storage

torch = pytest.importorskip("torch")


class Llm:
    """Records calls as text."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def called(*values: Any, **named: Any) -> bool:
            shown = [*map(str, values), *(f"{key}={value}" for key, value in named.items())]
            self.calls.append(f"{name}({', '.join(shown)})")
            return True

        return called


def memory(llm: Llm, *, cpu: bool, keep_weights: bool = False) -> EngineMemory:
    made = EngineMemory(llm, keep_weights=keep_weights)
    made.__dict__["_cpu"] = cpu
    return made


async def slept_and_woken(*, cpu: bool, keep_weights: bool = False) -> list[str]:
    llm = Llm()
    one = memory(llm, cpu=cpu, keep_weights=keep_weights)
    await one.wake_weights()
    await one.wake_cache()
    assert llm.calls == [], "it is awake"
    await one.free()
    assert one.asleep
    await one.wake_weights()
    llm.calls.append("load")
    await one.wake_cache()
    assert not one.asleep
    return llm.calls


PAUSE = ["pause_generation(mode=keep, clear_cache=False)", "reset_prefix_cache(reset_running_requests=True)"]


@pytest.mark.parametrize(("keep_weights", "level"), [(False, 2), (True, 1)])
async def test_on_a_gpu_weights_wake_before_they_are_loaded_and_the_cache_after(
    keep_weights: bool, level: int
) -> None:
    woken = ["wake_up(tags=['weights'])", "load", "wake_up(tags=['kv_cache'])"]
    assert await slept_and_woken(cpu=False, keep_weights=keep_weights) == [
        *PAUSE,
        f"sleep(level={level}, mode=keep)",
        *woken,
    ]


async def test_on_a_cpu_the_cache_is_freed_and_rebuilt() -> None:
    calls = [*PAUSE, "collective_rpc(free_kv_cache)", "load", "collective_rpc(rebuild_kv_cache)"]
    assert await slept_and_woken(cpu=True) == calls


def test_views_of_a_cache_stay_valid() -> None:
    backing = torch.full((4, 8), 7.0)
    views = [backing[:2], backing[2:]]
    other = torch.ones(16, dtype=torch.int8)
    worker = Storage()
    worker.model_runner = SimpleNamespace(kv_caches=[*views, [other]])
    for _ in range(2):
        worker.free_kv_cache()
        assert backing.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    for _ in range(2):
        worker.rebuild_kv_cache()
        assert (backing.untyped_storage().nbytes(), other.untyped_storage().nbytes()) == (4 * 8 * 4, 16)
    assert torch.equal(torch.cat(views), torch.zeros(4, 8))
    views[0].fill_(1)
    assert backing[:2].eq(1).all()
    assert other.eq(0).all()
