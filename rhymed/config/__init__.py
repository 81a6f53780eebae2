"""The configuration of a run: what a TOML file may contain, and how it is read. Pure, except `load`."""

from rhymed.config.config import Config
from rhymed.config.sections import (
    Data,
    Drafts,
    Eval,
    HeldOut,
    Metrics,
    Model,
    Net,
    Reward,
    Rollout,
    Run,
    Schedule,
    Scorer,
    Section,
    Store,
    Trace,
    Trainer,
)

__all__ = [
    "Config",
    "Data",
    "Drafts",
    "Eval",
    "HeldOut",
    "Metrics",
    "Model",
    "Net",
    "Reward",
    "Rollout",
    "Run",
    "Schedule",
    "Scorer",
    "Section",
    "Store",
    "Trace",
    "Trainer",
]
