"""`Config`: all sections, and what they may not say together."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from rhymed.config.sections import (
    INHERITED,
    Data,
    Drafts,
    Eval,
    Metrics,
    Model,
    Net,
    Reward,
    Rollout,
    Run,
    Schedule,
    Section,
    Store,
    Trace,
    Trainer,
)


class Config(Section):
    run: Run = Run()
    model: Model = Model()
    data: Data = Data()
    rollout: Rollout = Rollout()
    drafts: Drafts = Drafts()
    trace: Trace = Trace()
    reward: Reward = Reward()
    eval: Eval = Eval()
    trainer: Trainer = Trainer()
    schedule: Schedule = Schedule()
    store: Store = Store()
    metrics: Metrics = Metrics()
    net: Net = Net()

    @property
    def carries(self) -> bool:
        """Tokens that a sample made elsewhere, or earlier, can be verified instead of being made again."""
        rollout = self.rollout
        return rollout.engine == "trace" or (rollout.sampler == "keyed" and self.drafts.method != "none")

    @property
    def longest_response(self) -> int:
        """Tokens of the longest response that is ever asked for, in training or evaluation."""
        return max(self.rollout.max_response_length, self.eval.max_response_length or 0)

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, given: Any) -> Any:
        """Held-out prompts are asked as those of the training are, unless they say otherwise."""
        if not isinstance(given, dict):
            return given
        data, evaluation = given.get("data"), given.get("eval")
        if not isinstance(data, dict) or not isinstance(evaluation, dict):
            return given
        held_out = evaluation.get("datasets")
        if not isinstance(held_out, list):
            return given
        shared = {key: data[key] for key in INHERITED if key in data}
        for one in held_out:
            for key in INHERITED:
                if isinstance(one, dict) and key in one and one[key] != data.get(key, Data.model_fields[key].default):
                    raise ValueError(f"eval.datasets: {key} must be that of data, or left out: both are asked alike")
        datasets = [{**shared, **one} if isinstance(one, dict) else one for one in held_out]
        return {**given, "eval": {**evaluation, "datasets": datasets}}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        from rhymed.config.checks import contradictions

        if found := list(contradictions(self)):
            raise ValueError("\n".join(found))
        return self
