"""Samples to pack: groups of responses to prompts of different lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rhymed_workers.trainer.policy.packing import Sequences

tokens = st.integers(1, 99)


@st.composite
def groups(draw: st.DrawFn) -> list[Sequences]:
    found = []
    for prompt in draw(st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=4)):
        for response in draw(st.lists(st.lists(tokens, max_size=12), min_size=1, max_size=5)):
            found.append(Sequences(np.array(prompt, np.uint32), np.array(response, np.uint32)))
    return found


def drawn(prompts: list[int], responses: list[int], seed: int = 0) -> list[Sequences]:
    """Sample k answers prompt k modulo the number of prompts; both are lengths."""
    draw = np.random.default_rng(seed)
    texts = [draw.integers(2, 60, length) for length in prompts]
    return [Sequences(texts[k % len(texts)], draw.integers(2, 60, length)) for k, length in enumerate(responses)]
