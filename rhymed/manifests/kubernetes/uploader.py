"""What a run with a copy on shared storage (`run.remote`) has besides: the uploader, in the pod of the store. Pure.

It reads the store's database, which has to be on the same machine, and the run's folder: checkpoints, configuration,
timeline. So the trainer's volume becomes the run's folder of store, broker and trainer, and the store's disk lies in
it. LMDB knows its readers by process ids, so the pod's containers share them.
"""

from __future__ import annotations

from typing import Any

from rhymed.config import Config
from rhymed.manifests.kubernetes.pods import CONFIG, SLIM, Manifest, Options, prefix
from rhymed.manifests.kubernetes.workloads import SHARED
from rhymed.placement.plan import uploader

CPUS, MEMORY = "500m", "512Mi"
DISK = "store"  # name of the store's volume


def add_uploader(config: Config, options: Options, found: dict[str, list[Manifest]]) -> None:
    """Changes the objects; nothing without a copy. `found`: file name -> objects."""
    command = uploader(config, CONFIG, options="--stay")
    if command is None:
        return
    for name in SLIM:
        workload = found[f"{name}.yaml"][0]["spec"]
        shared = {"name": "run", "persistentVolumeClaim": {"claimName": f"{prefix(config)}-trainer"}}
        workload["template"]["spec"]["volumes"].append(shared)
    del found["broker.yaml"][0]["spec"]["volumeClaimTemplates"]
    _beside_store(config, found["store.yaml"][0]["spec"], command[1:])
    (volume,) = [one for one in found["trainer.yaml"] if one["kind"] == "PersistentVolumeClaim"]
    volume["spec"] |= {"accessModes": [SHARED]}
    volume["spec"].pop("storageClassName", None)
    if options.shared_class:
        volume["spec"]["storageClassName"] = options.shared_class


def _beside_store(config: Config, workload: dict[str, Any], arguments: list[str]) -> None:
    workload["volumeClaimTemplates"][0]["metadata"]["name"] = DISK
    pod = workload["template"]["spec"]
    (keys,), (store,) = pod["initContainers"], pod["containers"]
    place = f"/runs/{config.run.name}/store"
    keys["command"][2] += f"mkdir -p {place}\n"
    keys["volumeMounts"].append({"name": "run", "mountPath": "/runs"})
    store["volumeMounts"].append({"name": DISK, "mountPath": place})
    pod["shareProcessNamespace"] = True
    own = ("config", "run", "tmp", DISK)
    pod["containers"].append(
        {
            "name": "uploader",
            "image": store["image"],
            "args": arguments,
            "env": [one for one in store["env"] if not one["name"].startswith("RHYMED_NET__")],
            "envFrom": credentials(config),
            "resources": {"requests": {"cpu": CPUS, "memory": MEMORY}},
            "securityContext": store["securityContext"],
            "volumeMounts": [one for one in store["volumeMounts"] if one["name"] in own],
        }
    )


def credentials(config: Config) -> list[Manifest]:
    """Variables of the storage's package, from a secret that the user makes."""
    return [{"secretRef": {"name": f"{prefix(config)}-remote", "optional": True}}]
