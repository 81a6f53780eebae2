"""What becomes of samples that could not be scored, where `reward.on_error` says something else than to drop them."""

from __future__ import annotations

from typing import Literal

from rhymed.errors import RewardError
from rhymed.messages import Score, Scored
from rhymed_store.client import StoreClient


async def forgive(report: Scored, on_error: Literal["drop", "zero", "stop"], store: StoreClient) -> Scored:
    """`zero`: the reward is written down as 0 before it counts. Raises `RewardError`, with `stop`: the run ends."""
    wrong = [score for score in report.scores if score.reward is None]
    if not wrong or on_error == "drop":
        return report
    if on_error == "stop":
        raise RewardError(f"sample {wrong[0].id} could not be scored: {wrong[0].error} (reward.on_error = 'stop')")
    await store.put_scores([Score(id=score.id, reward=0.0) for score in wrong])
    told = {score.id: Score(id=score.id, reward=0.0, error=score.error, timeout=score.timeout) for score in wrong}
    return Scored(worker=report.worker, scores=[told.get(score.id, score) for score in report.scores])
