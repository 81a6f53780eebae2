"""What a test asks of each tensor-parallel rank of an engine; vLLM mixes it into its workers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from rhymed.histospec.extension import Extension
from rhymed.histospec.index.builder import PastResponse
from tests.histospec.v2_engine import prompts


class Ranks(Extension):
    """Methods of the workers of several tensor-parallel ranks."""

    def set_drafting(self, past: list[list[int]]) -> None:
        """`past`: a response to each prompt; none: nothing is drafted."""
        histo = self.model_runner.speculator.histo
        self.set_broken(not past)
        for number, tokens in enumerate(past):
            histo.remember(str(number), prompts()[number], [PastResponse(np.array(tokens, np.int32), 0)])
        indexed = threading.Event()
        histo._builder.run(indexed.set)
        assert indexed.wait(60)

    def set_broken(self, broken: bool) -> None:
        """Whether nothing is drafted, neither by history nor by a head."""
        self.model_runner.speculator.histo._broken = broken

    def correct_head(self, texts: list[list[int]]) -> None:
        """The engine's head drafts what follows in `texts`, a prompt with its response of each request, for every
        second request: right but for every sixth token."""
        runner = self.model_runner
        sample = runner.speculator.sample_draft

        def right(hidden: Any, positions: Any, slots: Any, *others: Any, **named: Any) -> Any:
            drafted = sample(hidden, positions, slots, *others, **named)
            for row, (at, slot) in enumerate(zip((positions + 1).tolist(), slots.tolist(), strict=True)):
                number = int(runner.req_states.index_to_req_id[slot].split("-")[0])
                if number % 2 and at < len(texts[number]):
                    drafted[row] = (texts[number][at] + (at % 6 == 5)) % 250
            return drafted

        runner.speculator.sample_draft = right

    def drafting(self) -> tuple[bool, int, int]:
        """Whether this rank drafts and nothing has failed; drafted, and accepted."""
        histo = self.model_runner.speculator.histo
        return not histo._broken and histo.drafts, histo._drafter.total.drafted, histo._drafter.total.accepted

    def drafted_by_head(self) -> tuple[int, int]:
        """Tokens of the head that were verified, and accepted."""
        head = self.model_runner.speculator.histo.engine
        return head.verified, head.accepted
