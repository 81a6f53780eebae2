"""Samples to pack: groups of responses to prompts of different lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rhymed_workers.trainer.policy.packing import SHARED, Sequences

tokens = st.integers(1, 99)


@st.composite
def groups(draw: st.DrawFn) -> list[Sequences]:
    found, common = [], draw(st.sampled_from([[], list(range(SHARED)), [*range(SHARED), 5, 5]]))
    for own in draw(st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=4)):
        prompt = [*common, *own] if draw(st.booleans()) else own
        for response in draw(st.lists(st.lists(tokens, max_size=12), min_size=1, max_size=5)):
            found.append(Sequences(np.array(prompt, np.uint32), np.array(response, np.uint32)))
    return found


def drawn(prompts: list[int], responses: list[int], seed: int = 0, common: int = 0) -> list[Sequences]:
    """Sample k answers prompt k modulo the number of prompts; both are lengths. `common`: before all prompts."""
    draw = np.random.default_rng(seed)
    texts = [np.concatenate([np.arange(2, 2 + common), draw.integers(2, 60, length)]) for length in prompts]
    return [Sequences(texts[k % len(texts)], draw.integers(2, 60, length)) for k, length in enumerate(responses)]
