"""The numbers of a step's tokens on their way to the store. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from rhymed.messages import SampleId
from rhymed_store.codec.tokenstats import NAMES, Numbers

MESSAGE_TOKENS = 1 << 20  # in one message, unless one sample is longer: other writes wait for its transaction


@dataclass(frozen=True)
class StepStats:
    """Rows as in `codec.tokenstats`; axis N: response tokens, sample after sample. NaN: unknown."""

    version: int  # of the policy before the step
    samples: list[SampleId]
    lengths: list[int]  # response tokens of each
    values: Numbers  # (4, N)

    def messages(self) -> Iterator[dict[SampleId, Numbers]]:
        """Those samples that the loss has seen, in parts of a message's size."""
        part: dict[SampleId, Numbers] = {}
        tokens = 0
        for sample, length, end in zip(self.samples, self.lengths, accumulate(self.lengths), strict=True):
            values = self.values[:, end - length : end]
            if not length or np.isnan(values[NAMES.index("logprob")]).all():
                continue
            if part and tokens + length > MESSAGE_TOKENS:
                yield part
                part, tokens = {}, 0
            part[sample] = values
            tokens += length
        if part:
            yield part
