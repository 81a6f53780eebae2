"""The configuration of a run: what a TOML file may contain, and how it is read. Only `load` reads files."""

from rhymed.core.config.base import Section as Section
from rhymed.core.config.config import Config as Config
from rhymed.core.config.environment import Environment as Environment
from rhymed.core.config.generation import Drafts as Drafts
from rhymed.core.config.generation import Rollout as Rollout
from rhymed.core.config.generation import Trace as Trace
from rhymed.core.config.inputs import Data as Data
from rhymed.core.config.inputs import Dataset as Dataset
from rhymed.core.config.inputs import Eval as Eval
from rhymed.core.config.inputs import HeldOut as HeldOut
from rhymed.core.config.inputs import Model as Model
from rhymed.core.config.inputs import Share as Share
from rhymed.core.config.reward import Reward as Reward
from rhymed.core.config.reward import Scorer as Scorer
from rhymed.core.config.services import Metrics as Metrics
from rhymed.core.config.services import Net as Net
from rhymed.core.config.services import Run as Run
from rhymed.core.config.services import Schedule as Schedule
from rhymed.core.config.services import Store as Store
from rhymed.core.config.trainer import Lora as Lora
from rhymed.core.config.trainer import Teacher as Teacher
from rhymed.core.config.trainer import Trainer as Trainer
