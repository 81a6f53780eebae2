"""Compose, Slurm and the example for Kubernetes start one plan: the same seats, commands, secrets and ports."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from rhymed.core.config import Config
from rhymed.placement import slurm
from rhymed.placement.plan import seats

ROOT = Path(__file__).parents[3]
CONFIG = Config()
DASHBOARD_PORT = 8420
LAST = re.compile(r"(?:config\.json|run\.toml)$|^\$\{RHYMED_CONFIG")


class Part(NamedTuple):
    command: tuple[str, ...]  # without its name, the configuration's file, and `--stay`
    secrets: frozenset[str]
    ports: frozenset[int]


def part(words: Iterable[str], secrets: Iterable[str], ports: Iterable[int]) -> Part:
    listed = list(words)
    assert LAST.search(listed.pop()), "the configuration's file comes last"
    if "--name" in listed:
        at = listed.index("--name")
        del listed[at : at + 2]
    return Part(tuple(word for word in listed if word != "--stay"), frozenset(secrets), frozenset(ports))


def planned() -> dict[str, Part]:
    return {one.name: part(one.command("config.json")[1:], one.secrets, one.ports.values()) for one in seats(CONFIG)}


def compose() -> dict[str, Part]:
    file = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    given = file["services"]["keys"]["command"][0]
    assert "install -m 0644 /keys/all/public /keys/$$role/public" in given
    assert "install -m 0600 /keys/all/$$role.secret /keys/$$role/$$role.secret" in given

    def read(service: dict[str, Any]) -> Part:
        (role,) = [
            re.findall(r"^key-(\w+):", str(volume))[0] for volume in service["volumes"] if "key-" in str(volume)
        ]
        ports = [int(port.rpartition(":")[2]) for port in service.get("ports", ())]
        return part(service["command"], ["public", f"{role}.secret"], ports)

    return {name: read(file["services"][name]) for name in planned()}


def slurm_scripts() -> dict[str, Part]:
    options = slurm.Options(Path("/shared/x"), Path("/"))
    found = {}
    for job in slurm.jobs(CONFIG):
        text = slurm.script(job, CONFIG, options)
        for seat in job.seats:
            body = text.split(f"\n{seat.name}() {{\n")[1].partition("\n}\n")[0]
            (line,) = re.findall(r"exec rhymed (.*)", body)
            (role,) = re.findall(r'RHYMED_NET__KEYS="\$FOLDER/keys/(\w+)"', body)
            own = {"store": "STORE", "broker": "BROKER", "trainer": "WEIGHTS"}.get(seat.name, "none")
            ports = re.findall(rf'RHYMED_NET__{own}="tcp://\$\w+:(\d+)"', text)
            found[seat.name] = part(shlex.split(line), ["public", f"{role}.secret"], map(int, ports))
    return found


def kubernetes() -> dict[str, Part]:
    folder = ROOT / "examples/clusters/kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    generated = {one["name"]: one["files"] for one in kustomization["secretGenerator"]}
    found = {}
    for name in planned():
        pod = next(yaml.safe_load_all((folder / f"{name}.yaml").read_text()))["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        (secret,) = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        ports = {port["containerPort"] for port in container.get("ports", ())} - {DASHBOARD_PORT}
        found[name] = part(container["args"], [file.removeprefix("keys/") for file in generated[secret]], ports)
    return found


@pytest.mark.parametrize("engine", [compose, slurm_scripts, kubernetes])
def test_an_engine_starts_the_plan(engine: Any) -> None:
    assert engine() == planned()
