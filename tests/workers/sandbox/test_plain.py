"""Settings that a jail gets as plain values."""

from __future__ import annotations

import datetime
from typing import Any

from rhymed.core.config import Environment, Reward
from rhymed.core.config.environment import McpServer
from rhymed_workers.sandbox.plain import packed, unpacked


def test_a_section_comes_out_with_its_fields_as_json_has_them() -> None:
    args: dict[str, Any] = {"deep": {"list": [1, 2.5, "ä", None, True]}, "day": datetime.date(2026, 1, 2)}
    reward = Reward.model_validate({"scorers": [{"scorer": "exact", "args": args}, {"scorer": "math", "weight": 2}]})
    found = unpacked(packed({"reward": reward, "scorers": reward.scorers}, steps=3))
    assert vars(found["reward"]) == reward.model_dump(mode="json")
    first, second = found["scorers"]
    assert (found["steps"], first.args["deep"], second.weight) == (3, args["deep"], 2.0)
    assert first.args["day"] == "2026-01-02"


def test_tables_of_users_stay_tables() -> None:
    server = McpServer(command="server", args=["-v"], env={"KEY": "hush"})
    environment = Environment(args={"scorer": "exact", "args": {}, "rhymed": {"a": [{"b": 1}]}}, mcp=[server])
    settings = unpacked(packed({"settings": environment}))["settings"]
    assert settings.args == environment.args
    assert [McpServer.model_validate(each) for each in settings.mcp] == [server], "as `find_tools` reads them"


def test_what_many_scorers_share_is_sent_once() -> None:
    one = {"scorer": "regex", "args": {"pattern": "x" * 10_000}}
    reward = Reward.model_validate({"scorers": [one | {"name": f"s{number}"} for number in range(20)]})
    assert len(packed({"reward": reward, "scorers": reward.all})) < 2.2 * 20 * 10_000 + 40_000
