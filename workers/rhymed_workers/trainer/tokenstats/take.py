"""Takes numbers along as the loss computes them: no pass is made for them, and nothing reads them during the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rhymed_store.client import StoredSample
from rhymed_store.codec.tokenstats import MOST, NAMES, Numbers
from rhymed_workers.trainer.algorithms.tokens import Tokens
from rhymed_workers.trainer.ranks.group import Alone
from rhymed_workers.trainer.tokenstats.step import StepStats
from rhymed_workers.trainer.turns import learned_mask


class Taken:
    """Of one step with `count` response tokens. They stay on the device of the loss until the step is over."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._values = torch.full((len(NAMES), count), torch.nan, dtype=torch.float16, device=device)

    @classmethod
    def of_parts(cls, parts: Sequence[Taken]) -> Taken:
        """Of a step whose groups were taken one by one; at least one."""
        whole = cls(0, parts[0]._values.device)
        whole._values = torch.cat([part._values for part in parts], dim=1)
        return whole

    def add(self, tokens: Tokens, entropy_N: Tensor, flat_N: Tensor, *, sampled: bool) -> None:
        """`flat_N`: the tokens' places in the step. `sampled`: an engine wrote them."""
        logp_N, engine_N = tokens.old_N.detach(), tokens.engine_N
        mismatch_N = logp_N - engine_N if sampled else torch.full_like(logp_N, torch.nan)
        for row_N, values_N in zip(self._values, (logp_N, entropy_N, mismatch_N, tokens.advantages_N), strict=True):
            row_N[flat_N] = values_N.detach().clamp(-MOST, MOST).to(row_N.dtype)

    def of(self, version: int, samples: Sequence[StoredSample], ranks: Alone) -> StepStats:
        """All ranks call it; each has seen its own samples."""
        values = self._values.cpu()
        if ranks.size > 1:
            known_N = ~values[0].isnan()
            values = torch.stack([ranks.merge(row_N.float(), known_N).half() for row_N in values])
        ids, lengths = [sample.info.id for sample in samples], [sample.info.length for sample in samples]
        return StepStats(version, ids, lengths, _whole(samples, values.numpy()))


def _whole(samples: Sequence[StoredSample], values: Numbers) -> Numbers:
    """(4, all response tokens): NaN for those of environments."""
    masks = [learned_mask(sample.info) for sample in samples]
    if all(mask is None for mask in masks):
        return values
    lengths = [sample.info.length for sample in samples]
    mask = np.concatenate(
        [np.ones(n, np.bool_) if own is None else own for own, n in zip(masks, lengths, strict=True)]
    )
    whole = np.full((len(values), len(mask)), np.nan, values.dtype)
    whole[:, mask] = values
    return whole
