"""All objects of a run as files of a kustomization. Pure.

Secrets and the configuration are generated from files by kustomize, so no manifest contains a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.manifests.kubernetes import network, scaling, workloads
from rhymed.manifests.kubernetes.kuberay import raycluster
from rhymed.manifests.kubernetes.pods import Manifest, Options, prefix
from rhymed.manifests.kubernetes.uploader import add_uploader
from rhymed.placement.plan import Seat, seats
from rhymed.wire.keys import PUBLIC, ROLES, secret_name

CONFIG = "config.json"
TOKEN = "dashboard.token"  # in the folder of keys
KUSTOMIZATION = "kustomization.yaml"


def objects(config: Config, options: Options) -> dict[str, list[Manifest]]:
    """File name -> objects. Raises `ConfigError`."""
    planned = seats(config, gpus=options.gpus)
    _refuse(planned)
    by_name = {seat.name: seat for seat in planned}
    found: dict[str, list[Manifest]] = {}
    for seat in planned:
        if seat.kind == "pinned":
            found[f"{seat.name}.yaml"] = workloads.server(config, seat, options)
        elif seat.kind == "elastic" and seat.count:
            scaled = scaling.scaling(config, seat, options)
            found[f"{seat.name}.yaml"] = [workloads.workers(config, seat, options), *scaled]
    found["trainer.yaml"] = workloads.trainer(config, by_name["trainer"], options)
    models = workloads.claim(workloads.MODELS_GIB, options.shared_class, workloads.SHARED)
    found["shared.yaml"] = [workloads.volume(config, options, "models", models), workloads.preemptible(config)]
    if options.most:
        found["shared.yaml"].append(scaling.authentication(config, options))
    add_uploader(config, options, found)
    found["network.yaml"] = network.policies(config, options)
    return _with_kustomization(config, options, found, [*_secrets(config, planned)])


def ray_objects(config: Config, options: Options) -> dict[str, list[Manifest]]:
    """The same for KubeRay: one file with a RayCluster, and its kustomization."""
    keys = [f"keys/{name}" for name in (PUBLIC, *map(secret_name, ROLES))]
    found = {"raycluster.yaml": raycluster(config, options)}
    return _with_kustomization(config, options, found, [{"name": f"{prefix(config)}-keys", "files": keys}])


def _refuse(planned: Sequence[Seat]) -> None:
    if any(seat.beside for seat in planned):
        raise ConfigError(
            "schedule.colocate = true: engines share the trainer's GPUs, but Kubernetes gives each pod GPUs of its"
            " own; set it to false"
        )


def _secrets(config: Config, planned: Sequence[Seat]) -> list[dict[str, Any]]:
    """A secret for each role, with its own key alone."""
    run = prefix(config)
    own = [{"name": f"{run}-key-{seat.role}", "files": [f"keys/{name}" for name in seat.secrets]} for seat in planned]
    return [*own, {"name": f"{run}-dashboard", "files": [f"token=keys/{TOKEN}"]}]


def _with_kustomization(
    config: Config, options: Options, found: dict[str, list[Manifest]], secrets: list[dict[str, Any]]
) -> dict[str, list[Manifest]]:
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": options.namespace,
        "resources": sorted(found),
        "configMapGenerator": [{"name": f"{prefix(config)}-config", "files": [CONFIG]}],
        "secretGenerator": secrets,
        "generatorOptions": {"disableNameSuffixHash": True},
    }
    return {KUSTOMIZATION: [kustomization], **found}
