"""The run as a set of processes: its folder, schedule, store, metrics and addresses, and their places."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rhymed.core.config.base import MOST_PROCESSES, NAME_LENGTH, Section
from rhymed.core.errors import ConfigError
from rhymed.core.wire.addresses import parse_http

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
LATEST = "latest"  # in run.folder


class Run(Section):
    name: str = Field("run", pattern=RUN_NAME, max_length=NAME_LENGTH, description="name of the run's folder")
    folder: str = Field("runs", description="folder that holds the runs' folders")
    seed: int = Field(0, ge=0, description="of data order, generated data and sampling")
    log_level: Literal["debug", "info", "warning"] = Field("info", description="of the files in `logs/`")
    report: bool = Field(True, description="write `report.html` when the run ends")
    remote: str = Field(
        "",
        description="folder of shared storage for a copy of the run, from which another machine can continue it:"
        " s3://bucket/runs, gs://…, hf://…, /mnt/shared/runs; empty: none",
    )

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name == LATEST:
            raise ValueError(f"{name!r} is the link to the newest run: choose another name")
        return name


class Schedule(Section):
    policy: Literal["flow", "rhyme", "fifo"] = Field(
        "flow",
        description="flow: longest expected first, to any worker with room; rhyme: the paper's; fifo: equal shares",
    )
    run_ahead: int = Field(
        0,
        ge=0,
        le=1,
        description="steps that idle workers may generate before the weights are ready; the tokens are verified then",
    )
    colocate: bool = Field(
        False, description="engines and trainer share GPUs: engines free their memory while the trainer trains"
    )
    max_staleness: int = Field(
        0, ge=0, le=1000, description="steps that a token's policy version may be behind its training step"
    )
    max_retries: int = Field(2, ge=0, description="retries of a sample that workers gave back; then it is dropped")
    max_losses: int = Field(
        10, ge=0, description="worker crashes without progress after which a sample is treated as suspect"
    )
    stuck_after_s: float = Field(
        900.0,
        gt=0,
        description="seconds without a new token or a score after which a sample is taken from its worker; for a"
        " score at least the time in which reward's limits end every call of its worker",
    )
    heartbeat_s: float = Field(1.0, gt=0, description="seconds between heartbeats of a worker")
    lost_after_s: float = Field(20.0, gt=0, description="seconds without a heartbeat after which a worker is lost")


class Store(Section):
    map_gib: float = Field(8.0, gt=0, description="maximum size of the database; disk space is used as needed")
    durability: Literal["sync", "async"] = Field(
        "sync",
        description="sync: acknowledged means on disk; async: faster, but a power failure may damage the store",
    )
    compression: int = Field(1, ge=0, le=19, description="zstd level of token arrays")
    backup_every: int = Field(
        5, gt=0, description="with run.remote: training steps between backups of the store; what is new is written"
    )
    keep_backups: int = Field(2, gt=0, description="with run.remote: number of backups to keep, the newest ones")


class Metrics(Section):
    """Where metrics go in addition to `metrics.jsonl`, TensorBoard and `/metrics`. See docs/watching.md."""

    sinks: list[Literal["wandb", "trackio", "mlflow"]] = Field(
        [],
        description="also send metrics to these; each needs its extra, e.g. pip install 'rhymed[wandb]'",
    )
    samples: int = Field(
        0,
        ge=0,
        le=64,
        description="rows of a table of samples that sinks get with each step: prompts with their best and worst"
        " response; 0: none",
    )
    project: str = Field("rhymed", min_length=1, description="project of W&B and trackio, experiment of MLflow")
    entity: str = Field("", description="W&B: user or team; empty: your default")
    offline: bool = Field(False, description="W&B: only write files to the run's folder, for `wandb sync`")
    space: str = Field("", description="trackio: a Hugging Face Space, e.g. me/trackio; empty: on this machine")
    mlflow: str = Field(
        "",
        description="MLflow's tracking server or database; empty: MLFLOW_TRACKING_URI, else mlflow.db in run.folder",
    )

    @field_validator("sinks", mode="after")
    @classmethod
    def _once(cls, sinks: list[str]) -> list[str]:
        return list(dict.fromkeys(sinks))


class Net(Section):
    """Addresses. `rhymed run` chooses the empty ones: ipc sockets whose paths are derived from the run's folder."""

    broker: str = Field("", description="e.g. tcp://10.0.0.1:5550")
    store: str = Field("", description="e.g. tcp://10.0.0.1:5551")
    weights: str = Field("", description="of the trainer, e.g. tcp://10.0.0.1:5552")
    ranks: str = Field(
        "",
        pattern=r"^(tcp://[^/\s:]+:\d{1,5})?$",
        description="where the trainer's ranks on several nodes meet, on the trainer's node: tcp://10.0.0.1:5553",
    )
    bind: str = Field(
        "", description="address that servers bind if it differs from the one above, e.g. 0.0.0.0 in a container"
    )
    relay: str = Field(
        "auto",
        description="where a rollout worker passes weights on to other hosts: auto (a free port of the interface that"
        " reaches the trainer), off, or tcp://HOST:PORT",
    )
    transport: Literal["auto", "ipc"] = Field(
        "auto",
        description="weights on the trainer's machine; auto: engines map the trainer's file in shared memory; ipc:"
        " they map the trainer's GPU memory, where they share its GPU (schedule.colocate),"
        " which was not tried on a GPU, and take the file where that fails. Other machines get slices over TCP",
    )
    keys: str = Field(
        "", description="folder of keys from `rhymed keygen`; locks every tcp:// address; empty: no keys"
    )
    insecure: bool = Field(False, description="allow network addresses without keys")
    http: str = Field(
        "127.0.0.1:8420", description="of the dashboard; if the port is taken, the next free one; empty: no dashboard"
    )

    @field_validator("relay")
    @classmethod
    def _is_relay(cls, relay: str) -> str:
        if relay not in ("auto", "off") and not re.fullmatch(r"tcp://(\[[^\]]+\]|[^:/\s]+):\d+", relay):
            raise ValueError(f"net.relay = {relay!r}: auto, off or tcp://HOST:PORT is expected")
        return relay

    @field_validator("http")
    @classmethod
    def _is_address(cls, address: str) -> str:
        try:
            if address:
                parse_http(address)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return address


# Where the processes of a run are placed, and what each of them asks of its machine.


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
