"""How a sample goes on after the policy's first turn: tools and environments."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from rhymed.config.base import MOST_PROCESSES, Section
from rhymed.config.reward import LEAST_GIB


class Environment(Section):
    """With `tools` or `factory` a sample is a sequence of turns; otherwise it is one response."""

    tools: str = Field("", description="functions that the policy may call: file.py:name,name")
    factory: str = Field(
        "",
        description="class of a sample's environment, file.py:Class: TRL's environment_factory (its public methods"
        " are tools) or SkyRL-Gym's BaseTextEnv; package.module:Class also works",
    )
    args: dict[str, Any] = Field({}, description="keyword arguments of factory")
    max_turns: int = Field(8, ge=1, le=10_000, description="turns of a sample; then it ends with what it has")
    parser: str = Field(
        "hermes", min_length=1, description="how calls are written: hermes (JSON in <tool_call>), or a parser of vLLM"
    )
    workers: int = Field(1, ge=1, le=MOST_PROCESSES, description="started by `rhymed run`; more can join at any time")
    processes: int = Field(
        2, gt=0, le=MOST_PROCESSES, description="subprocesses per worker; each makes one call at a time"
    )
    timeout_s: float = Field(30.0, gt=0, description="time limit of an answer; then its subprocess is killed")
    memory_gib: float = Field(4.0, ge=0, description="writable memory of a subprocess; 0: no limit")
    replay: bool = Field(
        True,
        description="after the loss of a subprocess, rebuild an environment of factory by making its calls again;"
        " false: its sample is dropped",
    )

    @property
    def active(self) -> bool:
        return bool(self.tools or self.factory)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.tools and self.factory:
            raise ValueError("tools cannot be combined with factory: make them methods of its class")
        if 0 < self.memory_gib < LEAST_GIB:
            raise ValueError(f"memory_gib: {self.memory_gib:g} is less than {LEAST_GIB:g}, which a subprocess needs")
        return self
