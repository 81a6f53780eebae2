"""Manifests of Kubernetes: who has which key, reaches whom, is probed and scaled; and their schemas."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rhymed.cli import main
from rhymed.config import Config
from rhymed.dashboard.prometheus import exposition
from rhymed.errors import ConfigError
from rhymed.manifests.document import yaml_of
from rhymed.manifests.kubernetes import pods, scaling
from rhymed.manifests.kubernetes.pods import Options, prefix
from rhymed.manifests.kubernetes.render import objects, ray_objects
from rhymed.wire.keys import ROLES, make_keys, read_public, read_secret
from tests.packages import needs
from tests.top.sample_run import snapshot

MANY: dict[str, dict[str, Any]] = {
    "run": {"name": "My.Run_1"},
    "trainer": {"nodes": 2, "gpus": 8},
    "rollout": {"workers": 3, "tensor_parallel": 2, "max_concurrency": 32},
    "net": {"ranks": "tcp://trainer:5553"},
}
SCALED = Options(most={"rollout": 16, "reward": 4})


def found(config: Config, options: Options = SCALED) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name without the run's) -> object."""
    listed = [one for file in objects(config, options).values() for one in file if "metadata" in one]
    return {(one["kind"], one["metadata"]["name"].removeprefix(f"{prefix(config)}-")): one for one in listed}


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    spec = workload["spec"]
    inner = spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec
    return dict(inner["template"]["spec"])


def test_store_and_broker_keep_volumes_and_workers_may_be_preempted() -> None:
    one = found(Config(**MANY))
    for name in ("store", "broker"):
        assert one["StatefulSet", name]["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "run"
        assert "priorityClassName" not in pod(one["StatefulSet", name])
    for name in ("rollout", "reward"):
        spec = pod(one["Deployment", name])
        assert spec["priorityClassName"] == one["PriorityClass", "preemptible"]["metadata"]["name"]
        assert any("spot" in toleration["key"] for toleration in spec["tolerations"])
    assert pod(one["Deployment", "rollout"])["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert one["PriorityClass", "preemptible"]["value"] < 0


def test_a_trainer_of_several_nodes_is_a_jobset_whose_first_pod_has_the_name_that_others_use() -> None:
    several, single = found(Config(**MANY)), found(Config())
    assert ("Job", "trainer") in single
    gang = several["JobSet", "trainer-nodes"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (gang["completions"], gang["successPolicy"]) == (2, {"rules": [{"succeededIndexes": "0"}]})
    script = pod(several["JobSet", "trainer-nodes"])["containers"][0]["command"][2]
    echo = script.replace("exec rhymed", "echo")
    for node, name in ((0, "--name trainer"), (1, "--node 1 --name trainer-node-1")):
        done = subprocess.run(
            ["sh", "-ec", echo], env={"JOB_COMPLETION_INDEX": str(node)}, capture_output=True, text=True
        )
        assert done.stdout == f"worker --role trainer {name} /etc/rhymed/config.json\n"
    assert several["Service", "trainer"]["spec"]["selector"]["batch.kubernetes.io/job-completion-index"] == "0"
    assert several["PersistentVolumeClaim", "trainer"]["spec"]["accessModes"] == ["ReadWriteMany"]
    services = {name for kind, name in several if kind == "Service"}
    assert not services & {name for kind, name in several if kind == "JobSet"}, "a JobSet makes a service of its name"


def test_only_servers_are_restarted_by_their_probe() -> None:
    one = found(Config())
    for kind, name in (("StatefulSet", "broker"), ("Deployment", "rollout"), ("Job", "trainer")):
        container = pod(one[kind, name])["containers"][0]
        assert container["readinessProbe"]["exec"]["command"][:3] == ["rhymed", "health", name]
        assert ("livenessProbe" in container) == (kind == "StatefulSet")


def test_policies_admit_what_compose_connects_and_a_reward_reaches_nothing_else() -> None:
    one = found(Config())

    def admitted(name: str) -> set[tuple[str, int]]:
        rules = one["NetworkPolicy", name]["spec"]["ingress"]
        return {
            (peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"], port["port"])
            for rule in rules
            for peer in rule.get("from", ())
            for port in rule.get("ports", [{"port": 0}])
        }

    assert admitted("store") == {(name, 5551) for name in ("broker", "trainer", "rollout", "reward")}
    assert admitted("broker") == {(name, 5550) for name in ("trainer", "rollout", "reward")}
    assert admitted("trainer") == {("trainer", 0), ("rollout", 0)}
    assert admitted("reward") == set()
    reward = one["NetworkPolicy", "reward"]["spec"]
    assert reward["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for rule in reward["egress"] for port in rule["ports"]] == [5550, 5551, 53, 53]
    judge = {"url": "https://api.example.com/v1", "model": "m"}
    other = found(Config.model_validate({"reward": {"scorer": "judge", "judge": judge}}))
    assert other["NetworkPolicy", "reward"]["spec"]["egress"][-1] == {"ports": [{"protocol": "TCP", "port": 443}]}


def test_the_scaler_asks_for_as_many_workers_as_the_work_occupies() -> None:
    one = found(Config(**MANY))
    spec = one["ScaledObject", "rollout"]["spec"]
    assert spec["advanced"]["scalingModifiers"] == {
        "formula": "waiting + running",
        "target": "32",
        "metricType": "AverageValue",
    }
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 16)
    located = [trigger["metadata"]["valueLocation"] for trigger in spec["triggers"]]
    assert located == ['rhymed_queue_samples{queue="waiting"}', 'rhymed_queue_samples{queue="running"}']
    assert "replicas" not in one["Deployment", "rollout"]["spec"], "or each apply would undo the scaler's number"
    asked = {**MANY, "placement": {"min": 2, "max": 8}}
    assert found(Config(**asked))["ScaledObject", "rollout"]["spec"]["minReplicaCount"] == 2
    fixed = found(Config(**MANY), Options())
    assert fixed["Deployment", "rollout"]["spec"]["replicas"] == 3
    assert not any(kind == "ScaledObject" for kind, _ in fixed)


def test_the_scalers_metric_is_one_that_the_broker_exports() -> None:
    text = exposition(snapshot()).decode()
    for state in (state for states in scaling.WORK.values() for state in states):
        assert f'rhymed_queue_samples{{queue="{state}",run="demo"}}' in text


def test_the_first_container_gives_a_process_a_secret_that_rhymed_accepts(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ROLES)
    for file in (tmp_path / "keys").iterdir():
        file.chmod(0o440)  # as Kubernetes makes the files of a volume with a group
    (tmp_path / "own").mkdir()
    script = pod(found(Config())["StatefulSet", "store"])["initContainers"][0]["command"][2]
    script = script.replace(pods.KEYS, f"{tmp_path}/own").replace("/keys/", f"{tmp_path}/keys/", 1)
    script = script.replace("-sf /keys/", f"-sf {tmp_path}/keys/")
    subprocess.run(["sh", "-ec", script], check=True)
    assert read_secret(tmp_path / "own", "store")
    assert "store" in read_public(tmp_path / "own").values()


@pytest.mark.parametrize("sections", [{}, MANY])
def test_whatever_an_object_refers_to_is_there(sections: dict[str, Any]) -> None:
    config = Config(**sections)
    made = objects(config, SCALED)
    kustomization = made["kustomization.yaml"][0]
    generated = {one["name"] for kind in ("secretGenerator", "configMapGenerator") for one in kustomization[kind]}
    one = found(config)
    claims = {each["metadata"]["name"] for (kind, _), each in one.items() if kind == "PersistentVolumeClaim"}
    for (kind, _), each in one.items():
        if kind == "ScaledObject":
            assert ("Deployment", each["spec"]["scaleTargetRef"]["name"].removeprefix(f"{prefix(config)}-")) in one
        if kind not in ("StatefulSet", "Deployment", "Job", "JobSet"):
            continue
        spec = pod(each)
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", ())}
        for container in (*spec["initContainers"], *spec["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for volume in spec["volumes"]:
            named = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
            assert named is None or named in generated
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}


def test_names_are_labels_of_dns() -> None:
    assert prefix(Config(run={"name": "My.Run_1"})) == "my-run-1"
    assert prefix(Config(run={"name": "7b"})) == "run-7b"
    assert len(prefix(Config(run={"name": "a" * 60}))) == 40


def test_engines_on_the_trainers_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.colocate"):
        objects(Config(schedule={"colocate": True}), SCALED)


def test_a_ray_cluster_has_a_pod_for_each_process_with_gpus_and_keys_on_its_head_alone() -> None:
    cluster = ray_objects(Config(**MANY), SCALED)["raycluster.yaml"][0]["spec"]
    trainer, rollout = cluster["workerGroupSpecs"]
    assert (trainer["replicas"], trainer["minReplicas"], trainer["maxReplicas"]) == (2, 2, 2)
    assert (rollout["replicas"], rollout["minReplicas"], rollout["maxReplicas"]) == (3, 1, 16)
    limits = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in (trainer, rollout)]
    assert [limit["nvidia.com/gpu"] for limit in limits] == ["8", "2"]
    assert any("secret" in volume for volume in cluster["headGroupSpec"]["template"]["spec"]["volumes"])
    assert not any(
        "secret" in volume for group in (trainer, rollout) for volume in group["template"]["spec"]["volumes"]
    )


def test_the_command_writes_a_kustomization_whose_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "a"}\n')
    engine = {"engine": "trace"}
    config = Config(
        run={"name": "mine"}, data={"path": "rows.jsonl"}, trainer=engine, rollout=engine | {"prompts_per_step": 1}
    )
    Path("my.json").write_text(config.model_dump_json())
    assert main(["launch", "kubernetes", "my.json", "--rollout-max", "4"]) == 0
    assert "warning  data.path = 'rows.jsonl' is on this machine" in capsys.readouterr().out
    out = tmp_path / "mine-kubernetes"
    kustomization = yaml.safe_load((out / "kustomization.yaml").read_text())
    files = [*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"]]
    files += [
        name.partition("=")[2] or name for secret in kustomization["secretGenerator"] for name in secret["files"]
    ]
    assert all((out / name).is_file() for name in files)
    secrets = [file for file in (out / "keys").iterdir() if file.name != "public"]
    assert {file.stat().st_mode & 0o777 for file in secrets} == {0o600}
    assert main(["launch", "kubernetes", "my.json", "-o", "placement.max=7", "--out", "other"]) == 0
    scaled = list(yaml.safe_load_all(Path("other/rollout.yaml").read_text()))[1]
    assert scaled["spec"]["maxReplicaCount"] == 7
    assert main(["launch", "kubernetes", "my.json", "--namespace", "A_b"]) == 2
    assert main(["launch", "kubernetes", "my.json", "--rollout-max", "0"]) == 2
    assert "--rollout-max 0: a number of workers" in capsys.readouterr().err
    assert main(["launch", "kubernetes", "my.json", "-o", "store.shards=2"]) == 2
    assert "manifests of Kubernetes have one store; set store.shards = 1" in capsys.readouterr().err


def test_yaml_reads_back_as_it_was() -> None:
    for made in (objects(Config(**MANY), SCALED), ray_objects(Config(**MANY), SCALED)):
        for listed in made.values():
            assert list(yaml.safe_load_all(yaml_of(listed, "about"))) == listed


@needs("kubernetes_validate")
@pytest.mark.thorough
@pytest.mark.parametrize("options", [SCALED, Options(gpus=False, volume_class="fast", shared_class="nfs")])
def test_objects_are_valid_by_the_schemas_of_kubernetes(options: Options) -> None:
    import kubernetes_validate

    others = ("Kustomization", "JobSet", "ScaledObject", "TriggerAuthentication", "RayCluster")
    for config in (Config(), Config(**MANY)):
        made = [*objects(config, options).values(), *ray_objects(config, options).values()]
        checked = [one for listed in made for one in listed if one["kind"] not in others]
        assert len(checked) > 10
        for one in checked:
            kubernetes_validate.validate(one, "1.37", strict=True)
