"""Chooses the engine. A module of its own, so that `base` imports no engine."""

from __future__ import annotations

from rhymed.config import Config
from rhymed_workers.engines.base import Engine, ReadRows


def build_engine(config: Config, read_rows: ReadRows) -> Engine:
    """The engine that the configuration names; nothing is started yet. `read_rows`: of prompts, from the store."""
    if config.rollout.engine == "trace":
        from rhymed_workers.engines.trace import TraceEngine

        return TraceEngine(config.trace, config.rollout)
    if config.rollout.engine == "dataset":
        from rhymed_workers.engines.dataset import DatasetEngine

        return DatasetEngine(config, read_rows)
    from rhymed.inputs.models import resolve_model
    from rhymed_workers.engines.vllm import VllmEngine

    return VllmEngine(config, resolve_model(config))
