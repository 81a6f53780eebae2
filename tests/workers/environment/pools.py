"""Pools of real processes with the tools and environments of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhymed.core.config import Config
from rhymed_workers.environment.pool import Environments
from rhymed_workers.environment.protocol import Stepped
from rhymed_workers.sessions.calls import Read, Wanted

CHAT = [{"role": "user", "content": "Begin."}]

Make = Callable[..., Environments]


def maker(folder: Path, text: str) -> Make:
    """`make(tools="a,b")` or `make(factory="Class")`, of this text in a file, and settings of [environment]."""
    file = folder / "mine.py"
    file.write_text(text)

    def make(
        tools: str = "",
        factory: str = "",
        reward: dict[str, Any] | None = None,
        run: Path | None = None,
        **settings: Any,
    ) -> Environments:
        named = {key: f"{file}:{name}" for key, name in (("tools", tools), ("factory", factory)) if name}
        section = {"processes": 1, "timeout_s": 60.0, **named, **settings}
        tree = {"environment": section, "reward": {"scorer": "exact", **(reward or {})}}
        return Environments(Config.model_validate(tree), run)

    return make


def calls(tool: str, **arguments: Any) -> Read:
    return Read("", [Wanted(tool, arguments)])


async def ask(pool: Environments, tool: str, name: str = "a", **arguments: Any) -> Stepped:
    return await pool.step(name, calls(tool, **arguments), last=False)


async def reported(pool: Environments, tool: str, name: str = "a", **arguments: Any) -> str:
    """What the policy reads."""
    (message,) = (await ask(pool, tool, name, **arguments)).messages
    return str(message["content"])
