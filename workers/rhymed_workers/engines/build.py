"""Chooses the engine. A module of its own, so that `base` imports no engine."""

from __future__ import annotations

from rhymed.config import Config
from rhymed_workers.engines.base import Engine


def build_engine(config: Config) -> Engine:
    """The engine that the configuration names; nothing is started yet."""
    if config.rollout.engine == "trace":
        from rhymed_workers.engines.trace import TraceEngine

        return TraceEngine(config.trace, config.rollout)
    from rhymed.inputs.models import resolve_model
    from rhymed_workers.engines.vllm import VllmEngine

    return VllmEngine(config, resolve_model(config))
