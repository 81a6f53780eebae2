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
    found = unpacked(packed(limits=reward, settings=[{"scorer": reward.scorers[0], "steps": 3}]))
    assert vars(found["limits"]) == reward.model_dump(mode="json")
    (setting,) = found["settings"]
    assert (setting["steps"], setting["scorer"].args["deep"]) == (3, args["deep"])
    assert setting["scorer"].args["day"] == "2026-01-02"


def test_tables_of_users_stay_tables() -> None:
    server = McpServer(command="server", args=["-v"], env={"KEY": "hush"})
    environment = Environment(args={"scorer": "exact", "args": {}}, mcp=[server])
    settings = unpacked(packed(settings=environment))["settings"]
    assert settings.args == environment.args
    assert [McpServer.model_validate(each) for each in settings.mcp] == [server], "as `find_tools` reads them"
