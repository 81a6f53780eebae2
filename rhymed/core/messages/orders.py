"""From the broker to a worker or the trainer."""

from __future__ import annotations

from rhymed.core.messages.base import Message
from rhymed.core.messages.fields import Count, Line, Numbers, Report, Step, Token, Version, Worded
from rhymed.core.messages.samples import SampleId


class Generate(Message, frozen=True, kw_only=True, tag="generate"):
    """Broker -> rollout worker: generate these. Done means accepted; Generated follows when they are stored."""

    samples: list[SampleId]
    begun: list[SampleId] = []  # those with saved tokens in the store, see PutPartials


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Broker -> rollout worker: abort these; their tokens are discarded."""

    samples: list[SampleId]


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """Broker -> rollout worker: save the tokens of these to the store, then return them with GiveBack."""

    samples: list[SampleId]


class LoadVersion(Message, Worded, frozen=True, kw_only=True, tag="load_version"):
    """Broker -> rollout worker: load these weights in place. Done means started; Loaded follows."""

    version: Version
    weights: Line  # address that serves them
    life: Token = ""  # of the trainer process that published them: after a rollback, version numbers repeat


class Sleep(Message, frozen=True, kw_only=True, tag="sleep"):
    """Broker -> rollout worker: free the engine's memory for the trainer. Done means started; Asleep follows.

    The samples that it holds wait. The next LoadVersion wakes the engine.
    """


class Act(Message, frozen=True, kw_only=True, tag="act"):
    """Broker -> environment worker: answer the last turn of these, or begin them. Done means accepted; Answered or
    Generated follows."""

    samples: list[SampleId]


class Close(Message, frozen=True, kw_only=True, tag="close"):
    """Broker -> environment worker: end the environments of these, which are dropped or continue with another worker.
    Done means accepted; what the worker does not have is left out."""

    samples: list[SampleId]


class ScoreSamples(Message, frozen=True, kw_only=True, tag="score"):
    """Broker -> reward worker: score these. Done means accepted; Scored follows."""

    samples: list[SampleId]


class BeginGroups(Message, frozen=True, kw_only=True, tag="begin_groups"):
    """Broker -> trainer: compute the gradients of these whole groups of the next step; others are still generated.

    Done means received; it may do nothing. TrainStep follows with all samples of the step in any case.
    """

    step: Step
    samples: list[SampleId]


class TrainStep(Message, Worded, frozen=True, kw_only=True, tag="train_step"):
    """Broker -> trainer: train one step on these complete groups. Done means accepted; Trained follows."""

    step: Step
    samples: list[SampleId]  # sorted: a step is reproducible only in a fixed order
    metrics: Numbers = {}  # of the step's rollouts, for the trainer's log
    steps: Count = 0  # in the whole run: the learning rate's schedule ends with them; 0: unknown


class Finish(Message, Worded, frozen=True, kw_only=True, tag="finish"):
    """Broker -> all workers: the run is over; leave. Trainer: write the last checkpoint first."""

    reason: Report


ToRollout = Generate | Cancel | Release | LoadVersion | Sleep | Finish

ToEnvironment = Act | Close | Finish

ToReward = ScoreSamples | Finish

ToTrainer = BeginGroups | TrainStep | Finish
