"""Makes a turn's calls, and turns their results into messages."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping
from typing import Any

from rhymed.errors import EnvironmentFailed
from rhymed.messages import Call
from rhymed_workers.environment.hosting.runner import Exited, Runner, is_async
from rhymed_workers.environment.hosting.tool import Tool, encodable, trl_error
from rhymed_workers.environment.protocol import Step, Stepped, Wanted
from rhymed_workers.scorers.explain import describe

LONGEST = 1 << 16  # characters of a result: what is longer no context could hold
LONGEST_TURN = 1 << 20  # of all results of a turn

Told = tuple[Call, str, float | None]
"""A call's record, what the policy reads, and what the call earned."""


class Caller:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def answer(self, request: Step, tools: Mapping[str, Tool]) -> Stepped:
        """The results of the calls in their order. Without any call the policy has spoken its last word.

        As in TRL, sync tools are called one after another, then async ones together.
        """
        if request.malformed:
            record = Call(name="?", error=request.malformed)
            return Stepped([_message("", trl_error("", request.malformed))], calls=[record])
        wanted = request.wanted
        if not wanted:
            return Stepped(done=True)
        told: dict[int, Told] = {}
        later = []
        for place, each in enumerate(wanted):
            tool = tools.get(each.name)
            if tool is not None and is_async(tool.function):
                later.append(place)
            else:
                told[place] = await self._call(each, tool, tools)
        calls = (self._call(wanted[place], tools[wanted[place].name], tools) for place in later)
        told |= zip(later, await asyncio.gather(*calls), strict=True)
        longest = min(LONGEST, LONGEST_TURN // len(told))
        answers = [told[place] for place in range(len(told))]
        earned = [reward for _, _, reward in answers if reward is not None]
        return Stepped(
            [_message(call.name, encodable(text[:longest])) for call, text, _ in answers],
            reward=sum(earned) if earned else None,
            calls=[call for call, _, _ in answers],
        )

    async def _call(self, wanted: Wanted, tool: Tool | None, tools: Mapping[str, Tool]) -> Told:
        began = time.monotonic()
        if tool is None:
            why = f"there is no tool {wanted.name!r}; there are: {', '.join(tools) or 'none'}"
            return Call(name=wanted.name, error=why), trl_error(wanted.name, why), None
        try:
            inspect.signature(tool.function).bind(**wanted.arguments)
            text, earned = tool.result(tool.name, await self._runner.call(tool.function, wanted.arguments))
        except (EnvironmentFailed, Exited):
            raise
        except Exception as error:  # what a tool raises, the policy reads
            record = Call(name=wanted.name, seconds=time.monotonic() - began, error=describe(error))
            return record, tool.error(tool.name, error), None
        return Call(name=wanted.name, seconds=time.monotonic() - began), text, earned


def _message(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content} if name else {"role": "tool", "content": content}
