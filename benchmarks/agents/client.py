"""Clients of the endpoint in a process of their own. Reads [sessions, calls], writes when each call began and ended.

A conversation grows by each answer and by a question, as an agent's does.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

import aiohttp

WAIT_S = (0.25, 0.75)  # between two calls of a session


async def _talk(http: aiohttp.ClientSession, url: str, token: str, calls: int) -> list[tuple[float, float]]:
    chat, times = [{"role": "user", "content": "What is in this folder?"}], []
    headers = {"Authorization": f"Bearer {token}"}
    for number in range(calls):
        await asyncio.sleep(random.uniform(*WAIT_S))
        begun = time.monotonic()
        body = {"model": "policy", "messages": chat}
        async with http.post(f"{url}/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
            response.raise_for_status()
        times.append((begun, time.monotonic()))
        chat += [answer["choices"][0]["message"], {"role": "user", "content": f"And then? {number}"}]
    return times


async def main() -> None:
    targets, calls = json.loads(sys.stdin.read())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        found = await asyncio.gather(*(_talk(http, url, token, calls) for url, token in targets.values()))
    print(json.dumps(dict(zip(targets, found, strict=True))))


if __name__ == "__main__":
    asyncio.run(main())
