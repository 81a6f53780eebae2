"""Nothing is made on a device that was not asked for, and nothing is read back within a micro-batch.

The meta device has no values: what mixes it with the processor's tensors, or reads from it, fails.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rhymed.check.machine import device_problems
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed_workers.trainer.policy.backbone import Compute
from rhymed_workers.trainer.policy.packing import micro_batches
from rhymed_workers.trainer.policy.policy import Policy
from tests.workers.trainer.policy.models import build
from tests.workers.trainer.policy.samples import drawn

SAMPLES = drawn([5, 700], [9, 20, 3, 150])


class OnlyMeta(TorchDispatchMode):
    """Refuses results on the processor, but for what comes from numpy and is moved at once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        moved = func in (torch.ops.aten.detach.default, torch.ops.aten.lift_fresh.default)
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and not moved:
                assert leaf.device.type == "meta", f"{func} makes a tensor on {leaf.device}"
        return made


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_micro_batch_stays_on_its_device(kind: str, whole: bool) -> None:
    with torch.device("meta"):
        policy = Policy(build(kind).float(), 0.8)
    (batch,) = micro_batches(SAMPLES, range(4), 4096)
    with OnlyMeta():
        value = policy.backward(batch, lambda logp_N, entropy_N, flat_N: logp_N.sum(), whole_sequences=whole)
        logp_N = policy.logprobs(batch)
    assert value.device.type == logp_N.device.type == "meta"
    assert all(parameter.grad.device.type == "meta" for parameter in policy.parameters())


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = Config.model_validate({"trainer": {"device": "cuda"}})
    with pytest.raises(ConfigError, match=r"trainer\.device = 'cuda', but torch finds no GPU"):
        Compute.of(config.trainer, config.model.train_dtype).where()
    assert ["torch finds no GPU" in problem for problem in device_problems(config.trainer)] == [True]
    assert Compute().where() == Compute("auto").where() == torch.device("cpu")
    assert list(device_problems(Config.model_validate({"trainer": {"device": "auto"}}).trainer)) == []


def test_settings_reach_the_computation() -> None:
    config = Config.model_validate(
        {"model": {"train_dtype": "bfloat16"}, "trainer": {"device": "cpu", "gradient_checkpointing": True}}
    )
    assert Compute.of(config.trainer, config.model.train_dtype) == Compute("cpu", "bfloat16", checkpointing=True)
