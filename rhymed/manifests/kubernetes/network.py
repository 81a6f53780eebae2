"""Who reaches whom, as in docker-compose.yml. Pure.

Each part accepts connections of the parts that need it alone. Reward workers, which may run a model's code, reach
nothing but broker, store, the names' service and the ports of judges. A policy has an effect only where the cluster's
network enforces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rhymed.config import Config
from rhymed.manifests.kubernetes.pods import DASHBOARD_PORT, Manifest, Options, labels, metadata, prefix
from rhymed.placement.plan import BROKER_PORT, STORE_PORT

NAMES = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}


def policies(config: Config, options: Options) -> list[Manifest]:
    workers = ("trainer", "rollout", *(("environment",) if config.environment.active else ()), "reward")
    http = {"ports": _tcp(DASHBOARD_PORT)}  # a token is required there: for KEDA, Prometheus and people
    ingress = {
        "store": [_from(config, ("broker", *workers), STORE_PORT)],
        "broker": [_from(config, workers, BROKER_PORT), http],
        "trainer": [_from(config, ("trainer", "rollout"))],  # every port: slices of weights have a free one
        "rollout": [_from(config, ("rollout",))],  # they pass weights on
        **({"environment": []} if config.environment.active else {}),  # which tools may reach is the cluster's affair
        "reward": [],
    }
    found = [_policy(config, options, component, {"ingress": rules}) for component, rules in ingress.items()]
    inside = [
        {"to": _pods(config, ("broker",)), "ports": _tcp(BROKER_PORT)},
        {"to": _pods(config, ("store",)), "ports": _tcp(STORE_PORT)},
        {"to": [NAMES], "ports": [{"protocol": "UDP", "port": 53}, *_tcp(53)]},
    ]
    inside += [{"ports": _tcp(judge.port)} for judge in config.reward.judges]
    found[-1]["spec"] |= {"egress": inside, "policyTypes": ["Ingress", "Egress"]}
    return found


def _policy(config: Config, options: Options, component: str, rules: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(config, options, f"{prefix(config)}-{component}", component),
        "spec": {"podSelector": {"matchLabels": labels(config, component)}, "policyTypes": ["Ingress"], **rules},
    }


def _from(config: Config, components: Sequence[str], *ports: int) -> Manifest:
    return {"from": _pods(config, components), **({"ports": _tcp(*ports)} if ports else {})}


def _pods(config: Config, components: Iterable[str]) -> list[Manifest]:
    return [{"podSelector": {"matchLabels": labels(config, component)}} for component in components]


def _tcp(*ports: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port} for port in ports]
