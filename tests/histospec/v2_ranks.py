"""What a test asks of each tensor-parallel rank of an engine; vLLM mixes it into its workers."""

from __future__ import annotations

import threading

import numpy as np

from rhymed.histospec.extension import Extension
from rhymed.histospec.index.builder import PastResponse
from tests.histospec.v2_engine import prompts


class Ranks(Extension):
    """Methods of the workers of several tensor-parallel ranks."""

    def set_drafting(self, past: list[list[int]]) -> None:
        """`past`: a response to each prompt; none: nothing is drafted."""
        histo = self.model_runner.speculator.histo
        histo._broken = not past
        for number, tokens in enumerate(past):
            histo.remember(str(number), prompts()[number], [PastResponse(np.array(tokens, np.int32), 0, None)])
        indexed = threading.Event()
        histo._builder.run(indexed.set)
        assert indexed.wait(60)

    def drafting(self) -> tuple[bool, int, int]:
        """Whether this rank drafts and nothing has failed; drafted, and accepted."""
        histo = self.model_runner.speculator.histo
        return not histo._broken and histo.drafts, histo._drafter.total.drafted, histo._drafter.total.accepted
