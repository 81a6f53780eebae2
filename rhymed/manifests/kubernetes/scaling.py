"""Workers by demand: KEDA's ScaledObjects on the broker's own metrics. Pure.

KEDA (2.18 or newer, for its `metrics-api` trigger of the format `prometheus`) reads the broker's `/metrics` with the
dashboard's token; no Prometheus server is needed.
"""

from __future__ import annotations

from rhymed.config import Config
from rhymed.manifests.kubernetes.pods import DASHBOARD_PORT, Manifest, Options, metadata, prefix
from rhymed.placement.plan import Seat

WORK = {"rollout": ("waiting", "running"), "environment": ("turned", "acting"), "reward": ("generated", "scoring")}
"""States of samples (docs/ledger.md) whose number is the work of a role."""
DOWN_S = 600  # work has to be less for so long before workers end: between two steps there is none


def scaling(config: Config, seat: Seat, options: Options) -> list[Manifest]:
    """Empty: the role's number is fixed."""
    most = (options.most or {}).get(seat.name)
    if not most:
        return []
    name = f"{prefix(config)}-{seat.name}"
    section = config.environment if seat.name == "environment" else config.reward
    each = config.rollout.max_concurrency if seat.name == "rollout" else section.processes
    spec = {
        "scaleTargetRef": {"name": name},
        "minReplicaCount": least(config, seat, most),
        "maxReplicaCount": most,
        "pollingInterval": 15,
        "advanced": {
            "horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": DOWN_S}}},
            "scalingModifiers": {
                "formula": " + ".join(WORK[seat.name]),
                "target": str(each),
                "metricType": "AverageValue",
            },
        },
        "triggers": [_trigger(config, options, state) for state in WORK[seat.name]],
    }
    kind = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject"}
    return [{**kind, "metadata": metadata(config, options, name, seat.name), "spec": spec}]


def least(config: Config, seat: Seat, most: int) -> int:
    """Replicas that are always there: with none, nothing would run until the next look at the work."""
    asked = config.placement.min if seat.name == "rollout" else 0
    return min(max(asked, 1), most)


def _trigger(config: Config, options: Options, state: str) -> Manifest:
    return {
        "type": "metrics-api",
        "name": state,
        "metadata": {
            "url": f"http://{prefix(config)}-broker.{options.namespace}.svc:{DASHBOARD_PORT}/metrics",
            "format": "prometheus",
            "valueLocation": f'rhymed_queue_samples{{queue="{state}"}}',
            "targetValue": "1",
            "authMode": "bearer",
        },
        "authenticationRef": {"name": f"{prefix(config)}-dashboard"},
    }


def authentication(config: Config, options: Options) -> Manifest:
    """The dashboard's token, for KEDA."""
    name = f"{prefix(config)}-dashboard"
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": metadata(config, options, name),
        "spec": {"secretTargetRef": [{"parameter": "token", "name": name, "key": "token"}]},
    }
