"""What docker-compose.yml promises, read from the file: no engine is needed. Containers are in test_compose.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
ALWAYS = {"keys", "prepare", "store", "broker", "reward", "dashboard", "report"}
OWN = {"store": "store", "broker": "broker", "reward": "reward", "trainer": "trainer", "rollout": "rollout"}
OWN |= {"environment": "environment"}  # of the profile "agents"
OWN |= {"rollout-gpu": "rollout", "trainer-gpu": "trainer", "dashboard": "viewer", "report": "viewer"}


@pytest.fixture(scope="module")
def file() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def started(file: dict[str, Any], profile: str) -> set[str]:
    return {name for name, one in file["services"].items() if profile in one.get("profiles", [profile])}


@pytest.mark.parametrize(("profile", "end"), [("cpu", ""), ("gpu", "-gpu")])
def test_a_profile_has_every_part_of_a_run_once(file: dict[str, Any], profile: str, end: str) -> None:
    assert started(file, profile) == ALWAYS | {f"rollout{end}", f"trainer{end}"}


def test_tools_and_environments_have_a_worker_where_it_is_asked_for(file: dict[str, Any]) -> None:
    assert started(file, "agents") - ALWAYS == {"environment"}
    text = "\n".join(file["services"]["keys"]["command"])
    assert " environment " in text
    assert "key-environment:/keys/environment" in file["services"]["keys"]["volumes"]


def test_a_trainer_is_reached_under_the_same_name_on_either_device(file: dict[str, Any]) -> None:
    plain, gpu = file["services"]["trainer"], file["services"]["trainer-gpu"]
    assert plain["networks"]["default"]["aliases"] == gpu["networks"]["default"]["aliases"] == ["trainer"]
    own = {"image", "build", "profiles", "deploy", "shm_size"}
    assert {key: gpu[key] for key in set(gpu) - own} == {key: plain[key] for key in set(plain) - own}


def test_only_what_computes_there_reserves_an_nvidia_device(file: dict[str, Any]) -> None:
    reserving = {name: one["deploy"] for name, one in file["services"].items() if "deploy" in one}
    assert set(reserving) == {"rollout-gpu", "trainer-gpu"}
    for name, deploy in reserving.items():
        (device,) = deploy["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert file["services"][name]["build"]["target"] == "gpu"
    chosen = {deploy["resources"]["reservations"]["devices"][0]["device_ids"][0] for deploy in reserving.values()}
    assert chosen == {"${RHYMED_ROLLOUT_GPU:-0}", "${RHYMED_TRAINER_GPU:-1}"}, "each has a GPU of its own"


@pytest.mark.parametrize("service", sorted(OWN))
def test_a_service_has_the_key_of_its_own_role_alone(file: dict[str, Any], service: str) -> None:
    mounted = [volume for volume in file["services"][service]["volumes"] if "key" in volume.partition(":")[0]]
    assert mounted == [f"key-{OWN[service]}:/run/secrets/rhymed:ro"]


def test_no_service_has_privileges_and_each_is_asked_to_end_before_it_is_killed(file: dict[str, Any]) -> None:
    for name, one in file["services"].items():
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert one["stop_grace_period"] == "20s", name
        assert not {"privileged", "user", "cap_add"} & set(one), name
    text = (ROOT / "Dockerfile").read_text()
    for target in ("slim", "worker", "gpu"):
        stage = text.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert 'USER 10001:10001\nENTRYPOINT ["rhymed"]\n' in stage, target


def test_what_serves_or_works_tells_how_it_is_and_every_volume_is_known(file: dict[str, Any]) -> None:
    lasting = {name for name, one in file["services"].items() if "restart" in one} - {"report"}
    assert lasting == set(OWN) - {"report"}
    assert all("healthcheck" in file["services"][name] for name in lasting)
    named = {volume.partition(":")[0] for one in file["services"].values() for volume in one.get("volumes", [])}
    assert {name for name in named if name[0] not in "./$"} == set(file["volumes"])


@pytest.mark.parametrize("service", ["reward", "environment"])
def test_what_runs_code_of_users_sees_neither_the_run_nor_the_outside(file: dict[str, Any], service: str) -> None:
    reward = file["services"][service]
    assert reward["networks"] == ["inside"]
    assert file["networks"]["inside"] == {"internal": True}
    assert "run:/runs" not in reward["volumes"]
    assert "models:/models:ro" in reward["volumes"]
