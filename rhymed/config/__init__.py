"""The configuration of a run: what a TOML file may contain, and how it is read. Only `load` reads files."""

from rhymed.config.base import Section
from rhymed.config.config import Config
from rhymed.config.generation import Drafts, Rollout, Trace
from rhymed.config.inputs import Data, Eval, HeldOut, Model
from rhymed.config.services import Metrics, Net, Run, Schedule, Store
from rhymed.config.training import Reward, Scorer, Trainer

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
