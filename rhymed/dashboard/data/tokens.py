"""A response token by token, with the numbers that the store has of each. Pure apart from reading the store.

The store keeps the engine's log-probs until a checkpoint holds the step, and never those of evaluations and imported
history. What training computed of each token it keeps within a bound, of the newest steps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rhymed.errors import StoreDamaged, UnknownSample
from rhymed.history.folder import RunFolder
from rhymed.history.responses.pieces import cut, whole_characters
from rhymed.history.responses.turns import runs_of
from rhymed.messages import EVAL, GetSamples
from rhymed_store.inspect.browse import Response

Stats: TypeAlias = NDArray[np.float32]

MOST = 4000  # tokens of a response: each is decoded on its own


def tokens_of(folder: RunFolder, response: Response) -> dict[str, Any]:
    """`tokens`: rows of text, `logprob` (natural, of the distribution it was sampled from), `version` and, from
    training, `trainer` (log-prob), `entropy`, `mismatch` and `advantage`. A row has several tokens where these are
    one character; its numbers are their sums, of advantages the mean. Tokens of an environment have no numbers, as no
    policy sampled them. `unknown` and `untrained`: why there are none.
    `trained_version`: of the policy that training computed them with."""
    tokens = response.tokens[:MOST]
    logprobs, unknown = _logprobs(folder, response)
    starts = whole_characters(folder.decode, tokens, list(range(len(tokens)))) if folder.decode else []
    given = _given(response)
    texts = cut(folder.decode, tokens, starts) if folder.decode and starts else None
    if texts is None:
        why = folder.missing or "the text cannot be split into its tokens"
        return {"tokens": [], "unknown": why, "untrained": why}
    stats, version, untrained = _stats(folder, response)
    versions = np.repeat(*np.array(response.info.versions).T) if response.info.versions else np.zeros(0, int)
    rows = [
        {
            "text": text,
            "logprob": None if logprobs is None or given[start] else float(logprobs[start:end].sum()),
            "version": int(versions[start]) if start < len(versions) and not given[start] else None,
            **(_of(stats, start, end) if stats is not None and not given[start] else {}),
        }
        for text, (start, end) in zip(texts, pairwise([*starts, len(tokens)]), strict=True)
    ]
    return {"tokens": rows, "unknown": unknown, "untrained": untrained, "trained_version": version}


def _given(response: Response) -> NDArray[np.bool_]:
    """Which tokens its environment wrote."""
    given = np.zeros(len(response.tokens), np.bool_)
    for run in runs_of(response):
        given[run.start : run.end] = run.environment
    return given


def _of(stats: Stats, start: int, end: int) -> dict[str, float | None]:
    logprob, entropy, mismatch, advantages = (part[start:end] for part in stats)
    sums = {"trainer": logprob.sum(), "entropy": entropy.sum(), "mismatch": mismatch.sum()}
    found = sums | {"advantage": advantages.mean()}
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def _stats(folder: RunFolder, response: Response) -> tuple[Stats | None, int | None, str]:
    """As in `codec.tokenstats`, with their version, or why there are none."""
    id = response.info.id
    try:
        (found,) = folder.browse.token_stats([id])
    except StoreDamaged as error:
        return None, None, str(error)
    if found is not None:
        return found.values.astype(np.float32), found.version, ""
    if not 0 <= id.step < EVAL:
        return None, None, "imported history and evaluations are never trained"
    if response.state != "trained":
        return None, None, "it is not trained"
    return None, None, "its group had no signal, or newer steps have taken the room (store.token_stats_gib)"


def _logprobs(folder: RunFolder, response: Response) -> tuple[Any, str]:
    try:
        _, arrays = folder.browse.samples(GetSamples(samples=[response.info.id], logprobs=True))
    except (UnknownSample, StoreDamaged) as error:
        return None, str(error)
    return np.frombuffer(arrays[1], np.float32), ""
