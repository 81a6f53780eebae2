"""To a worker or the trainer, all from the broker."""

from __future__ import annotations

from rhymed.messages.base import Message
from rhymed.messages.samples import SampleId


class Generate(Message, frozen=True, kw_only=True, tag="generate"):
    """Broker -> rollout worker: take these. Done means taken; Generated follows when they are stored."""

    samples: list[SampleId]
    begun: list[SampleId] = []  # of these the store has a beginning, see PutPartials


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Broker -> rollout worker: forget these; what they have so far is not kept."""

    samples: list[SampleId]


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """Broker -> rollout worker: hand these over: what they have goes to the store, then they are given back."""

    samples: list[SampleId]


class LoadVersion(Message, frozen=True, kw_only=True, tag="load_version"):
    """Broker -> rollout worker: load these weights in place. Done means begun; Loaded follows."""

    version: int
    weights: str  # address that serves them
    life: str = ""  # of the trainer that made them: one that was set back makes a version of the same number again


class RateSamples(Message, frozen=True, kw_only=True, tag="score"):
    """Broker -> reward worker: take these. Done means taken; Scored follows."""

    samples: list[SampleId]


class TrainStep(Message, frozen=True, kw_only=True, tag="train_step"):
    """Broker -> trainer: train one step on these whole groups. Done means taken; Trained follows."""

    step: int
    samples: list[SampleId]  # sorted: the order is part of what makes a step reproducible
    metrics: dict[str, float] = {}  # rollout's side of the step, for the trainer's log


class Finish(Message, frozen=True, kw_only=True, tag="finish"):
    """Broker -> everybody: the run is over; leave. Trainer: write the last checkpoint first."""

    reason: str


ToRollout = Generate | Cancel | Release | LoadVersion | Finish

ToReward = RateSamples | Finish

ToTrainer = TrainStep | Finish
