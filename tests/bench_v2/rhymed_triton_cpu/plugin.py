"""A general plugin of vLLM: what its model runner V2 needs in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

ASYNCHRONOUS = "BENCH_V2_ASYNC"
"""Environment variable: 1 keeps asynchronous scheduling, which vLLM switches off on CPUs."""


def install() -> None:
    """vLLM calls it in every process of an engine."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        take_masks_of_integers()
        from vllm.v1.sample.ops import topk_topp_sampler

        topk_topp_sampler.HAS_TRITON = False  # the interpreter cannot run its kernel; torch's operations do the same
    if os.environ.get(ASYNCHRONOUS) == "1":
        keep_asynchronous()


def take_masks_of_integers() -> None:
    """A compiled kernel may load by any integer's bits, which the interpreter refuses."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def boolean(mask: Any) -> Any:
        return mask if mask.data.dtype == bool else TensorHandle(mask.data.astype(bool), mask.dtype)

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    if hasattr(load, "rhymed"):
        return

    def masked_load(builder: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        return load(builder, pointers, boolean(mask), *others)

    def masked_store(builder: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        return store(builder, pointers, value, boolean(mask), *others)

    masked_load.rhymed = True  # type: ignore[attr-defined]
    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = masked_load, masked_store


def keep_asynchronous() -> None:
    from vllm.platforms import current_platform

    platform = type(current_platform)
    original = platform.check_and_update_config.__func__
    if hasattr(original, "rhymed"):
        return

    def check_and_update_config(kind: Any, config: Any) -> None:
        original(kind, config)
        config.scheduler_config.async_scheduling = True

    check_and_update_config.rhymed = True  # type: ignore[attr-defined]
    platform.check_and_update_config = classmethod(check_and_update_config)
