"""The model that the critic starts from, and whether it fits the policy. Needs no torch: `rhymed check`, the start of
`rhymed run` and the trainer ask the same.
"""

from __future__ import annotations

from pathlib import Path

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.inputs.models import context_of, resolve_model, resolve_second


def find(config: Config) -> Path:
    """Its folder. Blocking: it may have to be downloaded. Raises `ConfigError`."""
    name, rollout = config.trainer.critic.model, config.rollout
    if not name:
        return resolve_model(config)
    folder, _, _ = resolve_second(config, "trainer.critic.model", name)
    context, longest = context_of(folder), rollout.max_prompt_length + rollout.max_response_length
    if context is not None and context < longest:
        raise ConfigError(
            f"trainer.critic.model = {name!r} has a context of {context} tokens, less than"
            f" rollout.max_prompt_length + rollout.max_response_length = {longest}"
        )
    return folder
