"""A run with a copy on shared storage has one uploader, wherever it runs, beside the store and the run's folder."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rhymed.cli import main
from rhymed.config import Config
from rhymed.manifests import slurm
from rhymed.manifests.kubernetes.pods import Options
from rhymed.manifests.kubernetes.render import objects, ray_objects
from rhymed.placement.plan import commands, uploader
from tests.packages import needs

COPIED = Config(run={"name": "mine", "remote": "s3://bucket/runs"})
OPTIONS = Options(volume_class="fast", shared_class="nfs")


def pod(file: str, config: Config = COPIED) -> dict[str, Any]:
    return dict(objects(config, OPTIONS)[file][0]["spec"]["template"]["spec"])


def here() -> list[str]:
    return list(commands(COPIED, Path("config.json"))[-1].argv[3:])


def slurm_job() -> list[str]:
    options = slurm.Options(Path("/shared/x"), Path("/"))
    texts = slurm.scripts(COPIED, options)
    (line,) = re.findall(r"^uploader\(\) \{\n  exec rhymed (.*)\n\}$", texts["head.sbatch"], re.MULTILINE)
    assert not any("upload" in text for name, text in texts.items() if name != "head.sbatch")
    return shlex.split(line)


def kubernetes() -> list[str]:
    (found,) = [
        container["args"]
        for file in objects(COPIED, OPTIONS).values()
        for one in file
        for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
        if container["name"] == "uploader"
    ]
    return list(found)


@pytest.mark.parametrize("engine", [here, slurm_job, kubernetes])
def test_an_engine_starts_the_uploader_of_the_plan(engine: Any) -> None:
    *words, file = engine()
    assert Path(file).name == "config.json"
    assert [word for word in words if word not in ("--take-over", "--stay")] == uploader(COPIED, "")[1:-1]  # type: ignore[index]


def test_without_a_copy_there_is_none() -> None:
    assert uploader(Config(), "c.json") is None
    assert "upload" not in str(objects(Config(), OPTIONS)) + str(ray_objects(Config(), OPTIONS))
    assert "uploader()" not in "".join(slurm.scripts(Config(), slurm.Options(Path("/x"), Path("/"))).values())


def test_in_kubernetes_it_sees_what_store_broker_and_trainer_write() -> None:
    store, uploads = pod("store.yaml")["containers"]
    places = {mount["mountPath"]: mount["name"] for mount in uploads["volumeMounts"]}
    assert {"/runs": "run", "/runs/mine/store": "store"}.items() <= places.items()
    assert {mount["mountPath"]: mount["name"] for mount in store["volumeMounts"]}.items() >= places.items()
    assert "/keys" not in places, "it needs no key of the run"
    for file in ("store.yaml", "broker.yaml", "trainer.yaml"):
        shared = {"name": "run", "persistentVolumeClaim": {"claimName": "mine-trainer"}}
        assert shared in pod(file)["volumes"]
    made = objects(COPIED, OPTIONS)
    (disk,) = made["store.yaml"][0]["spec"]["volumeClaimTemplates"]
    assert (disk["metadata"]["name"], disk["spec"]["storageClassName"]) == ("store", "fast")
    assert "volumeClaimTemplates" not in made["broker.yaml"][0]["spec"]
    (volume,) = [one for one in made["trainer.yaml"] if one["kind"] == "PersistentVolumeClaim"]
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    assert volume["spec"]["storageClassName"] == "nfs"


def test_in_kubernetes_it_shares_process_ids_with_the_store_and_has_the_storages_credentials_alone() -> None:
    one = pod("store.yaml")
    assert one["shareProcessNamespace"], "LMDB knows its readers by their process ids"
    assert one["containers"][1]["envFrom"] == [{"secretRef": {"name": "mine-remote", "optional": True}}]
    assert "envFrom" not in one["containers"][0]
    assert "RHYMED_NET__KEYS" not in {variable["name"] for variable in one["containers"][1]["env"]}
    head = ray_objects(COPIED, OPTIONS)["raycluster.yaml"][0]["spec"]["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["envFrom"] == one["containers"][1]["envFrom"]


def test_the_place_of_the_stores_disk_is_there_before_it_is_mounted(tmp_path: Path) -> None:
    last = pod("store.yaml")["initContainers"][0]["command"][2].splitlines()[-1]
    subprocess.run(["sh", "-ec", last.replace("/runs/", f"{tmp_path}/")], check=True)
    assert (tmp_path / "mine" / "store").is_dir()


def test_whatever_a_container_mounts_is_a_volume_of_its_pod() -> None:
    for file, claims in (("store.yaml", {"store"}), ("broker.yaml", set()), ("trainer.yaml", set())):
        one = pod(file)
        volumes = claims | {volume["name"] for volume in one["volumes"]}
        for container in (*one["initContainers"], *one["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_a_copy_that_pods_do_not_reach_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.json").write_text(COPIED.model_dump_json())
    assert main(["launch", "kubernetes", "my.json"]) == 0
    assert "run.remote" not in capsys.readouterr().out
    assert yaml.safe_load(Path("mine-kubernetes/trainer.yaml").read_text().split("---")[0])["kind"] == "Job"
    assert main(["launch", "kubernetes", "my.json", "-o", "run.remote=/mnt/runs", "--force"]) == 0
    assert "warning  run.remote = '/mnt/runs' is a folder of this machine" in capsys.readouterr().out


@needs("kubernetes_validate")
@pytest.mark.thorough
def test_its_objects_are_valid_by_the_schemas_of_kubernetes() -> None:
    import kubernetes_validate

    for listed in objects(COPIED, OPTIONS).values():
        for one in listed:
            if one["kind"] != "Kustomization":
                kubernetes_validate.validate(one, "1.37", strict=True)
