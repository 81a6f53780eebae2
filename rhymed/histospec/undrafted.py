"""Makes a step in which nothing is drafted as cheap as one of an engine that never drafts, on a CPU.

With a drafter vLLM's model runner computes the indices of drafts in every step, by about twenty small operations, and
hands its scheduler a list of drafts for every request. Where no request has a draft the first are known, and the
second changes nothing: the scheduler has cleared the drafts that it scheduled. On a device these operations run while
it computes, so nothing is replaced there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch  # it reads its environment when it is imported, and an engine's is set later than this module is


def install(runner: Any) -> None:
    """Wraps two methods of this runner. Leaves a runner alone that lacks one of them, or schedules asynchronously."""
    metadata, take = (getattr(runner, name, None) for name in ("_calc_spec_decode_metadata", "take_draft_token_ids"))
    if metadata is None or take is None or runner.use_async_scheduling or runner.device.type != "cpu":
        return
    runner._calc_spec_decode_metadata = _known(metadata)
    runner.take_draft_token_ids = _unless_empty(runner, take)


def _known(original: Any) -> Any:
    import torch
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    @functools.lru_cache(maxsize=256)
    def constant(requests: int) -> tuple[torch.Tensor, ...]:
        """(no token, [B] zeros, [B] 1 to B, [B] 0 to B - 1): nothing writes into these."""
        counts_B = torch.arange(requests, dtype=torch.int32)
        none = torch.zeros(0, dtype=torch.int32)
        return none, torch.zeros_like(counts_B), counts_B + 1, counts_B

    @functools.wraps(original)
    def calc(num_draft_tokens: Any, cu_num_scheduled_tokens: Any, *others: Any, **named: Any) -> Any:
        if others or named or num_draft_tokens.any():
            return original(num_draft_tokens, cu_num_scheduled_tokens, *others, **named)
        none, zeros_B, ends_B, rows_B = constant(len(num_draft_tokens))
        last_B = torch.from_numpy(cu_num_scheduled_tokens[: len(num_draft_tokens)] - np.int32(1))
        return SpecDecodeMetadata(none, [0] * len(num_draft_tokens), zeros_B, ends_B, none, rows_B, last_B)

    return calc


def _unless_empty(runner: Any, original: Any) -> Any:
    @functools.wraps(original)
    def take_draft_token_ids() -> Any:
        drafts = runner._draft_token_ids
        return None if isinstance(drafts, list) and not any(drafts) else original()

    return take_draft_token_ids
