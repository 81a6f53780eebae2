"""A response token by token, with the numbers that the store has of each. Pure apart from reading the store.

The store keeps log-probs until a checkpoint holds the step, and never those of evaluations and imported history.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from rhymed.errors import StoreDamaged, UnknownSample
from rhymed.history.folder import RunFolder
from rhymed.history.pieces import cut, whole_characters
from rhymed.messages import GetSamples
from rhymed_store.inspect.browse import Response

MOST = 4000  # tokens of a response: each is decoded on its own


def tokens_of(folder: RunFolder, response: Response) -> dict[str, Any]:
    """`tokens`: rows of text, `logprob` (natural, of the distribution it was sampled from) and `version`. A row has
    several tokens where these are one character; its log-prob is their sum. `unknown`: why there are no log-probs."""
    tokens = response.tokens[:MOST]
    logprobs, unknown = _logprobs(folder, response)
    starts = whole_characters(folder.decode, tokens, list(range(len(tokens)))) if folder.decode else []
    texts = cut(folder.decode, tokens, starts) if folder.decode and starts else None
    if texts is None:
        return {"tokens": [], "unknown": folder.missing or "the text cannot be split into its tokens"}
    versions = np.repeat(*np.array(response.info.versions).T) if response.info.versions else np.zeros(0, int)
    rows = [
        {
            "text": text,
            "logprob": None if logprobs is None else float(logprobs[start:end].sum()),
            "version": int(versions[start]) if start < len(versions) else None,
        }
        for text, (start, end) in zip(texts, pairwise([*starts, len(tokens)]), strict=True)
    ]
    return {"tokens": rows, "unknown": unknown}


def _logprobs(folder: RunFolder, response: Response) -> tuple[Any, str]:
    try:
        _, arrays = folder.browse.samples(GetSamples(samples=[response.info.id], logprobs=True))
    except (UnknownSample, StoreDamaged) as error:
        return None, str(error)
    return np.frombuffer(arrays[1], np.float32), ""
