"""Where the processes of a run are placed, and what each of them asks of its machine."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rhymed.config.base import MOST_PROCESSES, Section


class Cpus(Section):
    """Processors of one process of each role."""

    store: float = Field(1.0, gt=0, le=MOST_PROCESSES, description="of the store")
    broker: float = Field(1.0, gt=0, le=MOST_PROCESSES, description="of the broker")
    trainer: float = Field(
        0.0, ge=0, le=MOST_PROCESSES, description="of the trainer on one node; 0: trainer.threads, or 1 for each rank"
    )
    rollout: float = Field(1.0, gt=0, le=MOST_PROCESSES, description="of one rollout worker")
    environment: float = Field(
        0.0,
        ge=0,
        le=MOST_PROCESSES,
        description="of one environment worker; 0: environment.processes, one for each",
    )
    reward: float = Field(
        0.0, ge=0, le=MOST_PROCESSES, description="of one reward worker; 0: reward.processes, one for each"
    )


class Memory(Section):
    """Memory of one process of each role, in GiB. 0: none is asked for."""

    store: float = Field(2.0, ge=0, le=1 << 20, description="of the store")
    broker: float = Field(2.0, ge=0, le=1 << 20, description="of the broker")
    trainer: float = Field(0.0, ge=0, le=1 << 20, description="of the trainer on one node")
    rollout: float = Field(0.0, ge=0, le=1 << 20, description="of one rollout worker")
    environment: float = Field(0.0, ge=0, le=1 << 20, description="of one environment worker")
    reward: float = Field(0.0, ge=0, le=1 << 20, description="of one reward worker")


class Placement(Section):
    """Past one machine: see docs/clusters.md."""

    engine: Literal["local", "ray"] = Field(
        "local", description="what `rhymed run` starts processes with. ray: on the machines of a Ray cluster"
    )
    address: str = Field(
        "",
        pattern=r"^(\[[^\]]+\]:\d{1,5}|[^:/\s]+:\d{1,5})?$",
        description="HOST:PORT of Ray's head; empty: RAY_ADDRESS, else the cluster of which this machine is a node",
    )
    min: int = Field(0, ge=0, le=MOST_PROCESSES, description="fewest rollout workers, with max")
    max: int = Field(
        0,
        ge=0,
        le=MOST_PROCESSES,
        description="most rollout workers: as many as the waiting samples occupy; 0: rollout.workers, or as"
        " `rhymed scale` says",
    )
    idle_s: float = Field(
        300.0, gt=0, description="with max: seconds for which fewer are enough before a rollout worker is sent away"
    )
    cpus: Cpus = Cpus()
    memory: Memory = Memory()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min = {self.min} is more than max = {self.max}")
        return self
