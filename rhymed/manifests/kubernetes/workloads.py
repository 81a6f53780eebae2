"""What runs: StatefulSets of store and broker, the trainer as a Job or a JobSet, Deployments of workers. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from rhymed.config import Config
from rhymed.manifests.kubernetes.pods import (
    CONFIG,
    DASHBOARD_PORT,
    SPOT,
    Manifest,
    Options,
    labels,
    metadata,
    prefix,
    template,
)
from rhymed.placement.plan import Seat

BROKER_GIB, CHECKPOINTS_GIB, MODELS_GIB = 10, 200, 100  # sizes of volumes
RETRIES = 1000  # of the trainer, which may be moved as often as its node is taken away
SHARED = "ReadWriteMany"


def server(config: Config, seat: Seat, options: Options) -> list[Manifest]:
    """Store or broker: one pod that keeps its volume, and its name in DNS."""
    name, gib = f"{prefix(config)}-{seat.name}", BROKER_GIB
    if seat.name == "store":
        gib = math.ceil(config.store.map_gib * 1.5) + 1
    arguments = seat.command(CONFIG, options="--stay" if seat.name == "broker" else "")[1:]
    spec = {
        "serviceName": name,
        "replicas": 1,
        "selector": {"matchLabels": labels(config, seat.name)},
        "template": template(config, seat, options, arguments),
        "volumeClaimTemplates": [{"metadata": {"name": "run"}, "spec": claim(gib, options.volume_class)}],
    }
    ports = dict(seat.ports) | ({"http": DASHBOARD_PORT} if seat.name == "broker" else {})
    workload = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(config, options, name, seat.name),
        "spec": spec,
    }
    return [workload, service(config, options, seat.name, ports)]


def service(config: Config, options: Options, component: str, ports: Mapping[str, int], **more: Any) -> Manifest:
    """`more`: further fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(config, options, f"{prefix(config)}-{component}", component),
        "spec": {
            "selector": labels(config, component),
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in ports.items()],
            **more,
        },
    }


def claim(gib: int, storage_class: str, mode: str = "ReadWriteOnce") -> Manifest:
    found: Manifest = {"accessModes": [mode], "resources": {"requests": {"storage": f"{gib}Gi"}}}
    return found | ({"storageClassName": storage_class} if storage_class else {})


def volume(config: Config, options: Options, name: str, spec: Manifest) -> Manifest:
    named = metadata(config, options, f"{prefix(config)}-{name}")
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named, "spec": spec}


def trainer(config: Config, seat: Seat, options: Options) -> list[Manifest]:
    """One pod: a Job. Several: a JobSet, which makes all again when one cannot be. The service names the first pod,
    without an address of its own, so that all of that pod's ports are reached: slices of weights have a free one."""
    name, several = f"{prefix(config)}-trainer", seat.count > 1
    first: Manifest = {"clusterIP": "None", "publishNotReadyAddresses": True}
    reached = service(config, options, "trainer", seat.ports, **first)
    if several:
        reached["spec"]["selector"]["batch.kubernetes.io/job-completion-index"] = "0"
        workload = _gang(config, seat, options, f"{name}-nodes")  # JobSet makes a service of this name
        kept = claim(CHECKPOINTS_GIB, options.shared_class, SHARED)
    else:
        pods = template(config, seat, options, seat.command(CONFIG, 0)[1:], restartPolicy="OnFailure")
        workload = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(config, options, name, "trainer"),
            "spec": {"backoffLimit": RETRIES, "template": pods},
        }
        kept = claim(CHECKPOINTS_GIB, options.volume_class)
    return [workload, reached, volume(config, options, "trainer", kept)]


def _gang(config: Config, seat: Seat, options: Options, name: str) -> Manifest:
    """It is over when the first pod is: the others would wait for a next trainer."""
    pods = template(config, seat, options, ["sh", "-ec", _by_index(seat)], restartPolicy="OnFailure")
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": seat.count,
        "parallelism": seat.count,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "backoffLimit": RETRIES,
        "template": pods,
    }
    replicated = {"name": "nodes", "replicas": 1, "template": {"spec": spec}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(config, options, name, "trainer"),
        "spec": {"failurePolicy": {"maxRestarts": RETRIES}, "replicatedJobs": [replicated]},
    }


def _by_index(seat: Seat) -> str:
    """The shell's choice between the commands of the first node and of another one."""
    index, words = "$JOB_COMPLETION_INDEX", seat.command(CONFIG, 1)
    others = [index if word == "1" else word.replace("-node-1", f"-node-{index}") for word in words]
    first = shlex.join(seat.command(CONFIG, 0))
    return f'if [ "{index}" = 0 ]; then exec {first}; else exec {" ".join(others)}; fi\n'


def workers(config: Config, seat: Seat, options: Options) -> Manifest:
    """Rollout or reward workers: any number of pods that may end at any time, on nodes that may be taken away."""
    pods = template(
        config,
        seat,
        options,
        seat.command(CONFIG)[1:],
        priorityClassName=f"{prefix(config)}-preemptible",
        tolerations=SPOT if seat.gpus else SPOT[1:],
    )
    fixed = {} if seat.name in (options.most or {}) else {"replicas": seat.count}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(config, options, f"{prefix(config)}-{seat.name}", seat.name),
        "spec": {
            **fixed,
            "selector": {"matchLabels": labels(config, seat.name)},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}},
            "template": pods,
        },
    }


def preemptible(config: Config) -> Manifest:
    """Of workers: they end first when a node is needed, and preempt nobody. An object of the whole cluster."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"{prefix(config)}-preemptible", "labels": labels(config)},
        "value": -10,
        "preemptionPolicy": "Never",
        "description": "Rollout and reward workers of rhymed, any of which may end at any time.",
    }
