"""The command lines of the stress tests: each option reaches `run`, and a mistake ends in one line."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from rhymed.core.errors import ConfigError
from tests.stress import command

COMMANDS = ("stress.chaos", "stress.soak", "stress.observers", "stress.overhead")
HOSTILE = ("hostile.crash", "hostile.fuzz", "hostile.relays.run")


@pytest.mark.parametrize("name", [f"tests.{name}" for name in (*COMMANDS, *HOSTILE)])
def test_every_option_is_one_of_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen = importlib.import_module(name), []

    def call(run: Callable[..., Any], parser: argparse.ArgumentParser) -> int:
        shared = {"help", "json"}
        seen.extend(action.dest for action in parser._actions if action.dest not in shared)
        assert set(seen) <= set(inspect.signature(run).parameters)
        assert parser.prog == f"python -m {name}"
        return 0

    monkeypatch.setattr(command, "call", call)
    assert module.main() == 0
    assert "quick" in seen


def test_options_that_are_not_given_are_left_to_run() -> None:
    taken: list[dict[str, Any]] = []

    def run(**options: Any) -> dict[str, Any]:
        taken.append(options)
        return {"good": False}

    parser = command.parser("tests.stress.chaos", "")
    parser.add_argument("--steps", type=int)
    assert command.call(run, parser, ["--quick"]) == 1
    assert command.call(run, parser, ["--steps", "3"]) == 1
    assert taken == [{"quick": True}, {"quick": False, "steps": 3}]


def test_a_mistake_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run(quick: bool) -> None:
        raise ConfigError("network namespaces need root")

    assert command.call(run, command.parser("tests.hostile.hosts", ""), []) == 2
    assert capsys.readouterr().err == "python -m tests.hostile.hosts: network namespaces need root\n"
