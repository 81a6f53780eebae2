"""A RayCluster of KubeRay for the same seats: Ray then places the processes (`placement.engine = "ray"`). Pure.

Its head keeps store and broker beside their volume. One group of pods is for the trainer's nodes, one for engines;
Ray's autoscaler adds and removes pods of the latter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rhymed.config import Config
from rhymed.manifests.kubernetes.pods import (
    ANY_GPU,
    GPU,
    KEYS,
    SPOT,
    USER,
    Manifest,
    Options,
    config_volume,
    metadata,
    prefix,
)
from rhymed.manifests.kubernetes.scaling import least
from rhymed.manifests.kubernetes.uploader import credentials
from rhymed.manifests.kubernetes.workloads import BROKER_GIB, claim, volume
from rhymed.placement.plan import Seat, seats

LEAST_GIB = 4.0  # of a pod: Ray sizes itself by its limit


def raycluster(config: Config, options: Options) -> list[Manifest]:
    """The cluster, and the volume of its head."""
    by_name = {seat.name: seat for seat in seats(config, gpus=options.gpus)}
    pinned = [by_name[name] for name in ("store", "broker", "environment", "reward") if name in by_name]
    name, kept = f"{prefix(config)}-ray", math.ceil(config.store.map_gib * 1.5) + BROKER_GIB
    head = {"rayStartParams": {"num-gpus": "0"}, "template": _head(config, options, pinned)}
    spec = {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": head,
        "workerGroupSpecs": [_group(config, options, by_name[role]) for role in ("trainer", "rollout")],
    }
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata(config, options, name),
        "spec": spec,
    }
    return [cluster, volume(config, options, "head", claim(kept, options.volume_class))]


def _group(config: Config, options: Options, seat: Seat) -> Manifest:
    """A pod for each process. Elastic ones from one to as many as asked for, on nodes that may be taken away."""
    elastic = seat.kind == "elastic"
    most = max((options.most or {}).get(seat.name, 0), seat.count)
    apart = {"tolerations": SPOT if elastic else ANY_GPU, "automountServiceAccountToken": False}
    return {
        "groupName": seat.name,
        "replicas": seat.count,
        "minReplicas": least(config, seat, most) if elastic else seat.count,
        "maxReplicas": most,
        "rayStartParams": {},
        "template": _pod(config, options, [seat], **apart),
    }


def _head(config: Config, options: Options, pinned: Sequence[Seat]) -> Manifest:
    """With all keys, of which Ray's keepers get their role's: `rhymed run` is submitted here. Ray's autoscaler, a
    container of this pod, needs the token of its service account."""
    pod = _pod(config, options, pinned)
    spec, run = pod["spec"], prefix(config)
    own = {"name": "own-keys", "mountPath": KEYS}
    copy = f"install -m 0600 /keys/*.secret {KEYS}/\nln -sf /keys/public {KEYS}/public\n"
    all_keys = {"name": "keys", "mountPath": "/keys", "readOnly": True}
    first = {"name": "keys", "image": image(options), "command": ["sh", "-ec", copy], "volumeMounts": [all_keys, own]}
    spec["initContainers"] = [first]
    spec["containers"][0]["env"].append({"name": "RHYMED_NET__KEYS", "value": KEYS})
    spec["containers"][0]["volumeMounts"] += [all_keys, own]
    if config.run.remote:  # `rhymed run` starts the uploader here
        spec["containers"][0]["envFrom"] = credentials(config)
    spec["volumes"] += [
        {"name": "keys", "secret": {"secretName": f"{run}-keys", "defaultMode": 0o440}},
        {"name": "own-keys", "emptyDir": {"medium": "Memory"}},
    ]
    spec["volumes"][1] = {"name": "run", "persistentVolumeClaim": {"claimName": f"{run}-head"}}
    return pod


def image(options: Options) -> str:
    return f"{options.images}-ray"


def _pod(config: Config, options: Options, seated: Sequence[Seat], **more: Any) -> Manifest:
    """With a folder for logs, which the head replaces by its volume."""
    cpus, memory = sum(seat.cpus for seat in seated), sum(seat.memory_gib for seat in seated)
    gpus = sum(seat.gpus for seat in seated)
    asked: Manifest = {"cpu": str(math.ceil(cpus)), "memory": f"{math.ceil(max(memory, LEAST_GIB))}Gi"}
    container = {
        "name": "ray",
        "image": image(options),
        "env": [{"name": "RHYMED_RUN__FOLDER", "value": "/runs"}],
        "resources": {"requests": asked, "limits": asked | ({GPU: str(gpus)} if gpus else {})},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/rhymed", "readOnly": True},
            {"name": "run", "mountPath": "/runs"},
        ],
    }
    return {
        "spec": {
            "securityContext": {"runAsUser": USER, "runAsNonRoot": True, "fsGroup": USER},
            "containers": [container],
            "volumes": [config_volume(config), {"name": "run", "emptyDir": {}}],
            **more,
        }
    }
