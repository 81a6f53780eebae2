"""The examples for Kubernetes and KubeRay: what they refer to is there, and their objects are valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rhymed.core.config.load import load_config
from rhymed.show.dashboard.prometheus import exposition
from rhymed.start.cli import main
from tests.packages import needs
from tests.show.top.sample_run import snapshot

CLUSTERS = Path(__file__).parents[3] / "examples" / "clusters"


def documents(name: str) -> Iterator[dict[str, Any]]:
    for file in sorted((CLUSTERS / name).glob("*.yaml")):
        yield from yaml.safe_load_all(file.read_text())


def of(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> object."""
    return {(one["kind"], one["metadata"]["name"]): one for one in documents(name) if "metadata" in one}


@pytest.mark.parametrize("name", ["kubernetes", "kuberay"])
def test_whatever_an_object_refers_to_is_there(name: str) -> None:
    folder, made = CLUSTERS / name, of(name)
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = [*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"]]
    assert all((folder / file).is_file() for file in files)
    generated = {one["name"] for kind in ("secretGenerator", "configMapGenerator") for one in kustomization[kind]}
    claims = {each for kind, each in made if kind == "PersistentVolumeClaim"}
    for (kind, _), each in made.items():
        if kind == "ScaledObject":
            assert ("Deployment", each["spec"]["scaleTargetRef"]["name"]) in made
        if kind not in ("StatefulSet", "Deployment", "Job"):
            continue
        spec = each["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", ())}
        for container in (*spec["initContainers"], *spec["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for volume in spec["volumes"]:
            named = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
            assert named is None or named in generated
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}


def test_numbers_are_those_of_the_run() -> None:
    for name in ("kubernetes", "kuberay"):
        config = load_config(CLUSTERS / name / "run.toml", (), {})
        assert config.run.name == "my-run"
    made, run = of("kubernetes"), load_config(CLUSTERS / "kubernetes" / "run.toml", (), {})

    def gpus(kind: str, name: str) -> str:
        pod = made[kind, f"my-run-{name}"]["spec"]["template"]["spec"]
        return str(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])

    assert gpus("Job", "trainer") == str(run.trainer.gpus)
    assert gpus("Deployment", "rollout") == str(run.rollout.engine_gpus)
    scaled = made["ScaledObject", "my-run-rollout"]["spec"]
    assert scaled["advanced"]["scalingModifiers"]["target"] == str(run.rollout.max_concurrency)


def test_the_scalers_metric_is_one_that_the_broker_exports() -> None:
    text = exposition(snapshot()).decode()
    located = [
        trigger["metadata"]["valueLocation"]
        for trigger in of("kubernetes")["ScaledObject", "my-run-rollout"]["spec"]["triggers"]
    ]
    assert located == ['rhymed_queue_samples{queue="waiting"}', 'rhymed_queue_samples{queue="running"}']
    for where in located:
        assert where.replace("}", ',run="demo"}') in text


def test_the_command_that_wrote_them_names_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "kubernetes", "my.json", "--rollout-max", "4"]) == 2
    assert "`rhymed launch kubernetes` is gone: examples/clusters/kubernetes" in capsys.readouterr().err


@needs("kubernetes_validate")
@pytest.mark.thorough
def test_objects_are_valid_by_the_schemas_of_kubernetes() -> None:
    import kubernetes_validate

    others = ("Kustomization", "ScaledObject", "TriggerAuthentication", "RayCluster")
    checked = [one for name in ("kubernetes", "kuberay") for one in documents(name) if one["kind"] not in others]
    assert len(checked) > 10
    for one in checked:
        kubernetes_validate.validate(one, "1.37", strict=True)
