"""Joins a sample's turns and answers to one sample: what is trained, and what history drafts from."""

from __future__ import annotations

import numpy as np

from rhymed import messages
from rhymed.service.retry import retry
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.sessions import StoredSession, get_session


async def complete_sample(store: StoreClient, id: messages.SampleId) -> messages.SampleInfo:
    """Stores the sample, whose last answer says that it is done. Returns the record that the store has."""
    stored = await retry(lambda: get_session(store, id, logprobs=True), "reading a sample's turns")
    if not stored.session.done:  # it is stored already: its turns are gone
        (found,) = await retry(lambda: store.get_samples([id]), "reading a sample")
        return found.info
    sample = joined(stored)
    await retry(lambda: store.put_samples([sample]), "storing a sample")
    return sample.info


def joined(stored: StoredSession) -> NewSample:
    """Environment tokens have log-prob 0 and the version of the turn before them."""
    session = stored.session
    assert stored.logprobs is not None, "the session was read with log-probs"
    assert stored.drafted is not None, "and with drafts"
    tokens = [run for pair in zip(stored.turns, stored.answers[1:], strict=True) for run in pair]
    logprobs, drafted, versions = [], [], list[tuple[int, int]]()
    for turn, probs, mask, answer in zip(
        session.turns, stored.logprobs, stored.drafted, stored.answers[1:], strict=True
    ):
        logprobs += [probs, np.zeros(len(answer), np.float32)]
        drafted += [np.zeros(turn.length, np.bool_) if mask is None else mask, np.zeros(len(answer), np.bool_)]
        for version, count in [*turn.versions, (turn.versions[-1][0], len(answer))]:
            if versions and versions[-1][0] == version:
                versions[-1] = version, versions[-1][1] + count
            elif count:
                versions.append((version, count))
    last = session.turns[-1].finish_reason
    earned = [answer.reward for answer in session.answers if answer.reward is not None]
    info = messages.SampleInfo(
        id=session.id,
        prompt_length=len(stored.prompt),
        length=sum(map(len, tokens)),
        finish_reason="length" if session.answers[-1].cut else last,
        versions=versions,
        turns=_runs([len(run) for run in tokens]),
        earned=sum(earned) if earned else None,
    )
    known = any(session.drafted)
    return NewSample(
        info,
        stored.prompt,
        np.concatenate(tokens),
        np.concatenate(logprobs),
        np.concatenate(drafted) if known else None,
    )


def _runs(lengths: list[int]) -> list[int]:
    """As in SampleInfo: an empty answer joins the turns around it, and an empty last one is left out."""
    runs: list[int] = []
    for place, length in enumerate(lengths):
        if len(runs) % 2 == place % 2 and length:
            runs.append(length)
        elif runs:
            runs[-1] += length
    return runs
