"""`Config`: all sections, and the checks between them.

To add a setting: a field of its section's class, with bounds and a description; what it contradicts, in `checks`; and
`make docs`.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from rhymed.core.config import checks
from rhymed.core.config.base import Section
from rhymed.core.config.environment import Environment
from rhymed.core.config.generation import Drafts, Rollout, Trace
from rhymed.core.config.inputs import INHERITED, Data, Eval, Model
from rhymed.core.config.reward import Reward
from rhymed.core.config.services import Metrics, Net, Placement, Run, Schedule, Store
from rhymed.core.config.trainer import Trainer


class Config(Section):
    run: Run = Run()
    model: Model = Model()
    data: Data = Data()
    rollout: Rollout = Rollout()
    drafts: Drafts = Drafts()
    trace: Trace = Trace()
    environment: Environment = Environment()
    reward: Reward = Reward()
    eval: Eval = Eval()
    trainer: Trainer = Trainer()
    schedule: Schedule = Schedule()
    store: Store = Store()
    metrics: Metrics = Metrics()
    net: Net = Net()
    placement: Placement = Placement()

    @property
    def carries(self) -> bool:
        """After a move or new weights, a sample's tokens can be verified instead of generated again."""
        rollout = self.rollout
        return rollout.engine == "trace" or (rollout.sampler == "keyed" and self.drafts.method != "none")

    @property
    def longest_response(self) -> int:
        """Limit of response tokens, in training or evaluation, whichever is larger."""
        return max(self.rollout.max_response_length, self.eval.max_response_length or 0)

    @model_validator(mode="before")
    @classmethod
    def _warm_start(cls, tree: Any) -> Any:
        """`sft` needs no engine, groups or rewards: their keys have other defaults."""
        if not isinstance(tree, dict) or not isinstance(trainer := tree.get("trainer"), dict):
            return tree
        rollout, reward = tree.get("rollout", {}), tree.get("reward", {})
        if trainer.get("algorithm") != "sft" or not isinstance(rollout, dict) or not isinstance(reward, dict):
            return tree
        scored = reward if reward.get("scorer") or reward.get("scorers") else {"scorer": "none", **reward}
        return {**tree, "rollout": {"engine": "dataset", "group_size": 1, **rollout}, "reward": scored}

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, tree: Any) -> Any:
        """The datasets of `data` and of `eval` take over `INHERITED` keys of `data`."""
        data = tree.get("data") if isinstance(tree, dict) else None
        if not isinstance(data, dict):
            return tree
        merged = dict(tree)
        for name in ("data", "eval"):
            section = tree.get(name)
            if isinstance(section, dict) and isinstance(section.get("datasets"), list):
                given = [_with_shared(name, data, dataset) for dataset in section["datasets"]]
                merged[name] = {**section, "datasets": given}
        return merged

    @model_validator(mode="after")
    def _agree(self) -> Self:
        contradictions = [
            *checks.step_size(self.rollout, self.trainer, self.data),
            *checks.open_samples(self.rollout, self.schedule),
            *checks.single_samples(self.rollout, self.trainer),
            *checks.engines(self.rollout, self.trainer, self.drafts, self.schedule),
            *checks.kept_tokens(self.rollout, self.trainer),
            *checks.quantization(self.model, self.trainer),
            *checks.colocation(self.rollout, self.schedule),
            *checks.dynamic_sampling(self.trainer, self.reward),
            *checks.critic(self.trainer),
            *checks.overlap(self.trainer, self.schedule),
            *checks.distillation(self.rollout, self.trainer),
            *checks.answers(self.rollout, self.trainer, self.data, self.eval),
            *checks.signal(self.trainer, self.reward),
            *checks.evaluation(self.eval, self.trainer),
            *checks.environments(self.environment, self.rollout, self.reward),
            *checks.deadlines(self.schedule, self.environment),
            *checks.addresses(self.net),
            *checks.ranks(self.trainer, self.net, self.placement),
            *checks.placement(self.rollout, self.schedule, self.store, self.placement),
        ]
        if contradictions:
            raise ValueError("\n".join(contradictions))
        return self


def _with_shared(section: str, data: dict[str, Any], dataset: Any) -> Any:
    """An entry of `<section>.datasets` with the keys that it takes from `data`."""
    if not isinstance(dataset, dict):
        return dataset
    for key in INHERITED:
        if key in dataset and dataset[key] != data.get(key, Data.model_fields[key].default):
            raise ValueError(
                f"{section}.datasets: {key} must equal data.{key} or be left out: both use the same messages"
            )
    return {**{key: data[key] for key in INHERITED if key in data}, **dataset}
