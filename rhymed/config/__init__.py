"""The configuration of a run: what a TOML file may contain, and how it is read. Only `load` reads files."""

from rhymed.config.base import Section as Section
from rhymed.config.config import Config as Config
from rhymed.config.generation import Drafts as Drafts
from rhymed.config.generation import Rollout as Rollout
from rhymed.config.generation import Trace as Trace
from rhymed.config.inputs import Data as Data
from rhymed.config.inputs import Dataset as Dataset
from rhymed.config.inputs import Eval as Eval
from rhymed.config.inputs import HeldOut as HeldOut
from rhymed.config.inputs import Model as Model
from rhymed.config.inputs import Share as Share
from rhymed.config.parts.environment import Environment as Environment
from rhymed.config.parts.lora import Lora as Lora
from rhymed.config.parts.teacher import Teacher as Teacher
from rhymed.config.reward import Reward as Reward
from rhymed.config.reward import Scorer as Scorer
from rhymed.config.services import Metrics as Metrics
from rhymed.config.services import Net as Net
from rhymed.config.services import Run as Run
from rhymed.config.services import Schedule as Schedule
from rhymed.config.services import Store as Store
from rhymed.config.trainer import Trainer as Trainer
