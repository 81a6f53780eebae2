"""The model that the critic starts from, and whether it fits the policy. Needs no torch: `rhymed check`, the start of
`rhymed run` and the trainer ask the same.
"""

from __future__ import annotations

from pathlib import Path

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.inputs.models import context_of, prepare, resolve_model
from rhymed.inputs.tokenizer import read_vocabulary


def find(config: Config) -> Path:
    """Its folder. Blocking: it may have to be downloaded. Raises `ConfigError`."""
    policy, name, rollout = resolve_model(config), config.trainer.critic.model, config.rollout
    if not name:
        return policy
    try:
        folder = prepare(name)
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.path", "trainer.critic.model")) from None
    mine, other = read_vocabulary(policy / "tokenizer.json"), read_vocabulary(folder / "tokenizer.json")
    if mine.fingerprint != other.fingerprint:
        raise ConfigError(
            f"trainer.critic.model = {name!r} has another tokenizer ({other.size} tokens) than model.path ="
            f" {config.model.path!r} ({mine.size} tokens): it cannot read the policy's tokens; choose a model of the"
            " same family, or leave it out"
        )
    context, longest = context_of(folder), rollout.max_prompt_length + rollout.max_response_length
    if context is not None and context < longest:
        raise ConfigError(
            f"trainer.critic.model = {name!r} has a context of {context} tokens, less than"
            f" rollout.max_prompt_length + rollout.max_response_length = {longest}"
        )
    return folder
