"""The pod of a seat: its container, its keys, its probes, and what it asks of its node. Pure.

An init container copies the secret from its volume, because Kubernetes makes the files of a volume readable to a
group, and rhymed refuses a secret key that others than its owner can read. `public` stays a link, so that changed
public keys arrive without a restart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhymed.config import Config
from rhymed.placement.plan import BROKER_PORT, Hosts, Seat, environment

Manifest = dict[str, Any]

USER = 10001  # of the images
KEYS = "/run/secrets/rhymed"
CONFIG = "/etc/rhymed/config.json"
DASHBOARD_PORT = 8420
SLIM = ("store", "broker")
GPU = "nvidia.com/gpu"
ANY_GPU = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
SPOT = [
    *ANY_GPU,
    {"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists", "effect": "NoSchedule"},
]
"""Taints of nodes that a provider may take away; elsewhere such nodes have none, or one of their own."""


@dataclass(frozen=True)
class Options:
    namespace: str = "default"
    images: str = "rhymed"  # prefix of the three images, e.g. registry/rhymed
    gpus: bool = True
    volume_class: str = ""  # storage class of the disks of store, broker and trainer; empty: the cluster's default
    shared_class: str = ""  # of the models' volume, which many pods mount (ReadWriteMany)
    most: Mapping[str, int] | None = (
        None  # role -> most replicas that are scaled to; roles that are not here are fixed
    )


def prefix(config: Config) -> str:
    """Of all names: a DNS label that begins with a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", config.run.name.lower()).strip("-")[:40].strip("-") or "run"
    return name if name[0].isalpha() else f"run-{name}"


def labels(config: Config, component: str = "") -> dict[str, str]:
    found = {"app.kubernetes.io/name": "rhymed", "app.kubernetes.io/instance": prefix(config)}
    return found | ({"app.kubernetes.io/component": component} if component else {})


def metadata(config: Config, options: Options, name: str, component: str = "") -> Manifest:
    return {"name": name, "namespace": options.namespace, "labels": labels(config, component)}


def hosts(config: Config) -> Hosts:
    """Names of the services."""
    run = prefix(config)
    return Hosts(f"{run}-store", f"{run}-broker", f"{run}-trainer")


def image(seat: Seat, options: Options) -> str:
    kind = "slim" if seat.name in SLIM else "gpu" if seat.gpus else "worker"
    return f"{options.images}-{kind}"


def variables(config: Config, seat: Seat) -> list[Manifest]:
    found = environment(config, hosts(config), KEYS)
    found |= {"RHYMED_RUN__FOLDER": "/runs", "RHYMED_SHARED_MEMORY": "/weights", "HOME": "/tmp"}
    if seat.name == "broker":  # serves /metrics and the dashboard, with a token
        found["RHYMED_NET__HTTP"] = f"0.0.0.0:{DASHBOARD_PORT}"
    listed: list[Manifest] = [{"name": name, "value": value} for name, value in found.items()]
    if seat.name == "broker":
        token = {"name": f"{prefix(config)}-dashboard", "key": "token"}
        listed.append({"name": "RHYMED_HTTP_TOKEN", "valueFrom": {"secretKeyRef": token}})
    return listed


def template(config: Config, seat: Seat, options: Options, arguments: Sequence[str], **more: Any) -> Manifest:
    """`arguments`: of the image's `rhymed`, or a whole command that begins with sh; `more`: fields of the pod."""
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 20,
        "securityContext": {
            "runAsUser": USER,
            "runAsGroup": USER,
            "runAsNonRoot": True,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": initial(config, seat, options),
        "containers": [container(config, seat, options, arguments)],
        "volumes": volumes(config, seat),
        **more,
    }
    if seat.gpus:
        spec.setdefault("tolerations", ANY_GPU)
    return {"metadata": {"labels": labels(config, seat.name)}, "spec": spec}


def container(config: Config, seat: Seat, options: Options, arguments: Sequence[str]) -> Manifest:
    called = {"command": list(arguments)} if arguments[0] == "sh" else {"args": list(arguments)}
    ports = [{"name": name, "containerPort": port} for name, port in seat.ports.items()]
    if seat.name == "broker":
        ports.append({"name": "http", "containerPort": DASHBOARD_PORT})
    return {
        "name": seat.name,
        "image": image(seat, options),
        **called,
        "env": variables(config, seat),
        **({"ports": ports} if ports else {}),
        "resources": resources(seat),
        **probes(seat),
        "securityContext": locked(seat),
        "volumeMounts": mounts(seat),
    }


def locked(seat: Seat) -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": seat.name in SLIM,
    }


def resources(seat: Seat) -> Manifest:
    asked = {"cpu": f"{seat.cpus:g}"}
    if seat.memory_gib:
        asked["memory"] = f"{math.ceil(seat.memory_gib * 1024)}Mi"
    return {"requests": asked, **({"limits": {GPU: str(seat.gpus)}} if seat.gpus else {})}


def probes(seat: Seat) -> Manifest:
    """A server that does not answer is restarted. A worker is only reported: its probe asks the broker, whose own
    restart must not end workers."""
    probe = {"exec": {"command": seat.health(CONFIG)}, "timeoutSeconds": 20}
    if seat.kind != "pinned":
        return {"readinessProbe": {**probe, "periodSeconds": 30}}
    return {
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": 60},
        "readinessProbe": {**probe, "periodSeconds": 10},
        "livenessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 4},
    }


def initial(config: Config, seat: Seat, options: Options) -> list[Manifest]:
    """Its keys; then the store waits for nobody, the broker reads dataset and model, workers wait for the broker."""
    public, secret = seat.secrets
    lines = [f"install -m 0600 /keys/{secret} {KEYS}/", f"ln -sf /keys/{public} {KEYS}/{public}"]
    if seat.kind != "pinned":
        place = f'("{hosts(config).broker}", {BROKER_PORT})'
        lines.append(
            f"until python3 -c 'import socket; socket.create_connection({place}, 5)' 2> /dev/null; do sleep 2; done"
        )
    keys = _initial("keys", f"{options.images}-slim", seat, command=["sh", "-ec", "\n".join(lines) + "\n"])
    keys["volumeMounts"] = [{"name": "keys", "mountPath": "/keys"}, {"name": "own-keys", "mountPath": KEYS}]
    if seat.name != "broker":
        return [keys]
    prepare = _initial("prepare", f"{options.images}-worker", seat, args=["prepare", CONFIG])
    prepare |= {
        "env": variables(config, seat),
        "volumeMounts": [*mounts(seat), {"name": "models", "mountPath": "/models"}],
    }
    return [keys, prepare]


def _initial(name: str, image: str, seat: Seat, **called: Any) -> Manifest:
    return {
        "name": name,
        "image": image,
        **called,
        "securityContext": {**locked(seat), "readOnlyRootFilesystem": False},
    }


def mounts(seat: Seat) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": "config", "mountPath": "/etc/rhymed", "readOnly": True},
        {"name": "own-keys", "mountPath": KEYS, "readOnly": True},
        {"name": "keys", "mountPath": "/keys", "readOnly": True},
        {"name": "run", "mountPath": "/runs"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if seat.name not in SLIM:
        reads = {"readOnly": True} if seat.name == "reward" else {}
        found.append({"name": "models", "mountPath": "/models", **reads})
        found.append({"name": "weights", "mountPath": "/weights"})
        found.append({"name": "shm", "mountPath": "/dev/shm"})
    return found


def config_volume(config: Config) -> Manifest:
    return {"name": "config", "configMap": {"name": f"{prefix(config)}-config"}}


def volumes(config: Config, seat: Seat) -> list[Manifest]:
    """Without `run` where it is a claim of a StatefulSet."""
    run = prefix(config)
    found: list[Manifest] = [
        config_volume(config),
        {"name": "keys", "secret": {"secretName": f"{run}-key-{seat.role}", "defaultMode": 0o440}},
        {"name": "own-keys", "emptyDir": {"medium": "Memory"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if seat.files == "shared":
        found.append({"name": "run", "persistentVolumeClaim": {"claimName": f"{run}-trainer"}})
    elif seat.files == "logs":
        found.append({"name": "run", "emptyDir": {}})
    if seat.name != "store":
        found.append({"name": "models", "persistentVolumeClaim": {"claimName": f"{run}-models"}})
    if seat.name not in SLIM:
        found.append({"name": "weights", "emptyDir": {"medium": "Memory"}})
        found.append({"name": "shm", "emptyDir": {"medium": "Memory"}})  # a container's own is too small for NCCL
    return found
