"""Writes a folder to a hub: the Hugging Face hub, or the one that HF_ENDPOINT names. Blocking.

The token and the repository are checked before anything is converted: the mistakes are found in the first second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.errors import ConfigError
from rhymed.inputs.hub import is_identifier

REPLACED = ("model*.safetensors", "model.safetensors.index.json", "adapter_model.safetensors", "adapter_config.json")
"""Files of an earlier push that the new one would be loaded with: another number of shards, an adapter."""


@dataclass(frozen=True)
class Target:
    """A repository of models."""

    name: str  # user/name
    revision: str = ""  # branch; empty: main
    private: bool = False
    update: bool = False  # it may exist already

    @property
    def page(self) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.name}" + (f"/tree/{self.revision}" if self.revision else "")


def check_name(name: str) -> None:
    """Raises `ConfigError`."""
    if "/" not in name or not is_identifier(name):
        raise ConfigError(f"{name}: name a repository as USER/NAME")


def check(target: Target) -> None:
    """Raises `ConfigError` if the repository cannot be written."""
    from huggingface_hub import HfApi, constants, get_token

    check_name(target.name)
    if constants.is_offline_mode():
        raise ConfigError("HF_HUB_OFFLINE is set, and a hub cannot be written without a network")
    if get_token() is None:
        raise ConfigError("there is no token for the hub: `hf auth login`, or set HF_TOKEN to one that may write")
    with _in_words(target):
        api = HfApi()
        api.whoami()
        exists = api.repo_exists(target.name)
        public = exists and target.private and not api.repo_info(target.name).private
    if exists and not target.update:
        raise ConfigError(f"{target.page} exists already: name another one, or add --update to write into it")
    if public:
        raise ConfigError(
            f"{target.page} is public, and --private does not change that: change it there, or leave it out"
        )


def push(target: Target, folder: Path, message: str) -> str:
    """Returns the address of the commit. Raises `ConfigError` if the hub refuses."""
    from huggingface_hub import HfApi

    with _in_words(target):
        api = HfApi()
        api.create_repo(target.name, private=target.private or None, exist_ok=target.update)
        if target.revision:
            api.create_branch(target.name, branch=target.revision, exist_ok=True)
        commit: Any = api.upload_folder(
            repo_id=target.name,
            folder_path=folder,
            revision=target.revision or None,
            commit_message=message,
            delete_patterns=list(REPLACED) if target.update else None,
        )
    return str(commit.commit_url)


@contextlib.contextmanager
def _in_words(target: Target) -> Iterator[None]:
    """Turns the library's errors into a `ConfigError` of one line."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    try:
        yield
    except hub.HFValidationError as error:
        raise ConfigError(f"{target.name}: {error}") from None
    except hub.HfHubHTTPError as error:
        status = error.response.status_code
        text = error.server_message or " ".join(str(error).split())[:200]
        if status == 401:
            raise ConfigError(f"{constants.ENDPOINT} does not know this token ({text}): `hf auth login`") from None
        if status == 403:
            raise ConfigError(
                f"the hub refuses to write {target.name}: {text}; use a token that may write for this user or"
                " organization, see `hf auth whoami`"
            ) from None
        if status == 409:
            raise ConfigError(f"{target.page} exists already: name another one, or add --update") from None
        raise ConfigError(f"{constants.ENDPOINT} answers {status}: {text}") from None
    except ValueError as error:  # of a card that the hub does not accept
        raise ConfigError(f"the hub does not accept {target.name}: {' '.join(str(error).split())}") from None
    except RuntimeError as error:  # of the upload of one file
        raise ConfigError(f"{' '.join(str(error).split())} {_unreachable(error.__cause__ or error)}") from None
    except OSError as error:
        raise ConfigError(_unreachable(error)) from None
    except Exception as error:  # of the HTTP client
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        raise ConfigError(_unreachable(error)) from None


def _unreachable(error: BaseException) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
