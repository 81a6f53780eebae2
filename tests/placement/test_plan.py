"""What a run consists of: one list of seats for one machine, for Ray, compose, Slurm and Kubernetes."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rhymed.core.config import Config
from rhymed.core.messages.names import wrong_name
from rhymed.placement import plan
from rhymed.placement.plan import Hosts, Seat

TRACE = {"rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}}


def seat(name: str, *, gpus: bool = True, **sections: Any) -> Seat:
    return next(one for one in plan.seats(Config(**sections), gpus=gpus) if one.name == name)


def test_the_processes_of_one_machine_are_those_of_the_seats_in_their_order() -> None:
    config = Config(rollout={"workers": 2}, reward={"workers": 1})
    commands = plan.commands(config, Path("c.json"), {"rollout-1": {"A": "1"}})
    assert [one.name for one in commands] == ["store", "broker", "trainer", "rollout-0", "rollout-1", "reward-0"]
    rhymed = [sys.executable, "-m", "rhymed"]
    assert commands[0].argv == [*rhymed, "store", "c.json"]
    assert commands[2].argv == [*rhymed, "worker", "--role", "trainer", "--name", "trainer", "c.json"]
    assert commands[4].argv == [*rhymed, "worker", "--role", "rollout", "--name", "rollout-1", "c.json"]
    assert [dict(one.environment) for one in commands if one.environment] == [{"A": "1"}]


def test_every_process_has_a_name_of_its_role_and_needs_the_secret_of_no_other() -> None:
    config = Config(trainer={"nodes": 3}, net={"ranks": "tcp://10.0.0.1:5553"}, rollout={"workers": 2})
    names = [name for one in plan.seats(config) for name in one.processes()]
    assert len(set(names)) == len(names) == 8
    for one in plan.seats(config):
        assert one.secrets == ("public", f"{one.name}.secret")
        for name in one.processes():
            assert one.name in ("store", "broker") or not wrong_name(one.name, name)


def test_a_gang_has_one_process_on_each_of_its_machines() -> None:
    gang = seat("trainer", trainer={"nodes": 2, "gpus": 4}, net={"ranks": "tcp://10.0.0.1:5553"})
    assert (gang.kind, gang.count, gang.gpus, gang.cpus) == ("gang", 2, 4, 4)
    assert gang.command("c.toml", 0) == ["rhymed", "worker", "--role", "trainer", "--name", "trainer", "c.toml"]
    second = "rhymed worker --role trainer --node 1 --name trainer-node-1 c.toml"
    assert gang.command("c.toml", 1) == second.split()
    assert dict(gang.ports) == {"weights": 5552, "ranks": 5553}


def test_requirements_follow_from_settings_or_are_given() -> None:
    engine = seat("rollout", rollout={"workers": 3, "tensor_parallel": 2, "pipeline_parallel": 2})
    assert (engine.count, engine.gpus, engine.kind, engine.memory_gib) == (3, 4, "elastic", 0)
    assert seat("rollout", **TRACE).gpus == seat("trainer", **TRACE).gpus == 0
    assert seat("rollout", gpus=False).gpus == seat("trainer", gpus=False).gpus == 0
    assert seat("reward", reward={"processes": 6}).cpus == 6
    given = seat("reward", reward={"processes": 6}, placement={"cpus": {"reward": 0.5}, "memory": {"reward": 3}})
    assert (given.cpus, given.memory_gib) == (0.5, 3)
    assert seat("trainer", trainer={"threads": 8}).cpus == 8


def test_copies_are_named_by_their_host() -> None:
    assert seat("rollout").command("c.toml") == ["rhymed", "worker", "--role", "rollout", "c.toml"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_addresses_take_placeholders_and_are_settings(nodes: int) -> None:
    given = {"trainer": {"nodes": nodes}, "net": {"ranks": "tcp://10.0.0.1:5553"} if nodes > 1 else {}}
    found = plan.addresses(Config(**given), Hosts("${HEAD}", "${HEAD}", "${TRAINER}"))
    assert found["store"] == "tcp://${HEAD}:5551"
    assert found["weights"] == "tcp://${TRAINER}:5552"
    assert found.get("ranks") == ("tcp://${TRAINER}:5553" if nodes > 1 else None)
    Config(**{**given, "net": {**found, "ranks": "tcp://10.0.0.2:5553" if nodes > 1 else ""}})


def test_compose_starts_what_the_plan_has_with_its_addresses() -> None:
    compose = yaml.safe_load(Path("docker-compose.yml").read_text())
    config = Config()
    expected = plan.environment(config, Hosts("store", "broker", "${RHYMED_PUBLIC:-trainer}"), "/run/secrets/rhymed")
    assert compose["x-addresses"] == expected
    file = "${RHYMED_CONFIG:-configs/quickstart.toml}"
    for one in plan.seats(config):
        service = compose["services"][one.name]
        assert [word for word in service["command"] if word != "--stay"] == one.command(file)[1:]
        assert service["healthcheck"]["test"] == ["CMD", "rhymed", "health", one.name, file]
        assert f"key-{one.role}:/run/secrets/rhymed:ro" in service["volumes"]


def test_a_run_with_a_copy_has_an_uploader_on_the_machine_of_its_folder() -> None:
    started = plan.commands(Config(run={"remote": "s3://bucket/runs"}), Path("c.json"), everywhere=True)
    assert started[-1].name == "uploader"
    assert list(started[-1].argv) == [sys.executable, "-m", "rhymed", "upload", "c.json"]
    assert "uploader" not in {seat.name for seat in plan.seats(Config())}
