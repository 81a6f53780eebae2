"""Settings of drafting inside an engine, passed as `additional_config = {"rhymed": {...}}` of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from rhymed.core.errors import ConfigError

KEY = "rhymed"
"""Of vLLM's `additional_config`, and of a request's `SamplingParams.extra_args`."""


@dataclass(frozen=True)
class Settings:
    """`extra_args = {"rhymed": {"prompt": str, "step": int, "key": int, "carried": [int]}}` describes one request;
    all of it is optional: whose history it uses (default: that of the same prompt tokens), its training step, the key
    of its noise, and response tokens that were made before under this noise, with other weights or another engine."""

    budget: Literal["rate", "aimd", "fixed"] = "rate"  # how many drafted tokens a step verifies
    matching: Literal["history", "paper"] = "history"  # how drafts are found
    store: str = ""  # folder of a local store, read and written; empty: history comes from `remember`
    responses: int = 32  # earlier responses per prompt
    memory_mib: int = 512  # of all indexes
    keyed: bool = True  # position-keyed sampling
    engine: int = 0  # tokens that vLLM's own head drafts in addition to history, see `runner_v2`; 0: there is none

    @property
    def orders(self) -> tuple[int, int]:
        """Context lengths of the index, (long, short); the paper's are 7 and 3."""
        return (7, 3) if self.matching == "paper" else (8, 2)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value, allowed = getattr(self, name), get_args(kind)
            if allowed and value not in allowed:
                raise ConfigError(f"{KEY}.{name} = {value!r}: one of {', '.join(allowed)} expected")
            if not allowed and type(value) is not kind:
                raise ConfigError(f"{KEY}.{name} = {value!r}: {kind.__name__} expected")
        if self.responses < 0 or self.memory_mib < 1 or self.engine < 0:
            raise ConfigError(f"{KEY}.responses, {KEY}.memory_mib and {KEY}.engine must not be negative")
        if self.engine and self.budget != "rate":
            raise ConfigError(f"{KEY}.engine needs {KEY}.budget = 'rate'")


def read_settings(additional: Mapping[str, Any] | None) -> Settings:
    """From vLLM's `additional_config`. Raises `ConfigError` for unknown options and invalid values."""
    options = (additional or {}).get(KEY, {})
    if not isinstance(options, Mapping):
        raise ConfigError(f"additional_config[{KEY!r}] must be a table, not {options!r}")
    names = [field.name for field in fields(Settings)]
    if unknown := sorted(set(options) - set(names)):
        raise ConfigError(f"additional_config[{KEY!r}] has no option {unknown[0]!r}; it has {', '.join(names)}")
    return Settings(**options)
