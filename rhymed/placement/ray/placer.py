"""`python -m rhymed.placement.ray.placer HOST:PORT`: a run's connection to Ray, in a process of its own.

Ray ends the processes that are connected to it soon after its head is lost; the run has to continue. Reads `ToPlacer`
words on standard input and writes `FromPlacer` words; ends with its input, and Ray then ends its keepers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec

from rhymed.output import show
from rhymed.placement.ray import keeper
from rhymed.placement.ray.words import Ended, Failed, FromPlacer, Lost, Node, Placed, Ready, Say, Start, ToPlacer
from rhymed.service.process import die_with_parent

LINE_BYTES = 16 << 20
EX_AWAY = 69  # EX_UNAVAILABLE: Ray cannot be reached
SAY_S = 10.0
CANCELLED = -signal.SIGTERM


class Placer:
    def __init__(self, head: str, output: int) -> None:
        self._head, self._output = head, output
        self._keepers: dict[int, Any] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}  # starts without a place yet
        self._gang: Any = None  # placement group of the trainer's machines
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, words: asyncio.StreamReader) -> None:
        while line := await words.readline():
            word = msgspec.json.decode(line, type=ToPlacer)
            if isinstance(word, Start):
                self._waiting[word.id] = self._begin(self._start(word))
            elif waiting := self._waiting.pop(word.id, None):
                waiting.cancel()  # Ray would give it a place later, and count it as demand until then
                self.send(Ended(word.id, CANCELLED, ""))
            else:
                self._begin(self._say_to(word))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def send(self, word: FromPlacer) -> None:
        os.write(self._output, msgspec.json.encode(word) + b"\n")

    async def _start(self, start: Start) -> None:
        import ray

        try:
            self.send(await self._kept(start))
        except ray.exceptions.RayActorError as error:
            why = _why(error)
            self.send(Failed(start.id, why) if error.actor_init_failed else Lost(start.id, why))
        except Exception as error:  # of Ray in many kinds; a process of which nobody hears would wait for ever
            self.send(Lost(start.id, _why(error)))
        finally:
            self._waiting.pop(start.id, None)
            if handle := self._keepers.pop(start.id, None):
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.kill(handle)

    async def _kept(self, start: Start) -> FromPlacer:
        handle = self._keepers[start.id] = keeper.actor(**await self._options(start))
        host = await handle.where.remote()
        self._waiting.pop(start.id, None)
        self.send(Placed(start.id, host))
        status, words = await handle.run.remote(msgspec.json.encode(start), self._head, self._first_host() or host)
        if status is None:
            return Failed(start.id, words) if words else Lost(start.id, "what watched over it there was killed")
        return Ended(start.id, status, words)

    async def _options(self, start: Start) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs: dict[str, Any] = {"num_cpus": start.cpus, "num_gpus": start.gpus, "name": f"{start.name}#{start.id}"}
        if start.memory_gib:
            needs["memory"] = int(start.memory_gib * 2**30)
        if start.gang > 1:
            group = await self._group(start)
            needs["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, start.number)
        return needs

    async def _group(self, start: Start) -> Any:
        """One place on each of several machines, all at once or none."""
        from ray.util.placement_group import placement_group

        if self._gang is None:
            each = {"CPU": start.cpus, "GPU": float(start.gpus), "memory": start.memory_gib * 2**30}
            bundle = {name: amount for name, amount in each.items() if amount}
            self._gang = placement_group([bundle] * start.gang, strategy="STRICT_SPREAD")
        group = self._gang
        await group.ready()
        return group

    def _first_host(self) -> str:
        """Of the gang's machines; empty: there is no gang."""
        if self._gang is None:
            return ""
        import ray
        from ray.util.placement_group import placement_group_table

        node = placement_group_table(self._gang)["bundles_to_node_id"][0]
        return next((str(one["NodeManagerAddress"]) for one in ray.nodes() if one["NodeID"] == node), "")

    async def _say_to(self, say: Say) -> None:
        import ray

        if handle := self._keepers.get(say.id):
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                await asyncio.wait_for(_awaited(handle.say.remote(say.what)), SAY_S)


async def _awaited(reference: Any) -> Any:
    return await reference


def _why(error: BaseException) -> str:
    import ray

    if isinstance(error, ray.exceptions.RayActorError):
        if error.actor_init_failed:
            return f"{error.error_msg.strip().splitlines()[-1]}: every node needs the same rhymed"
        return "its machine, or Ray there, is gone"
    return str(error).strip().partition("\n")[0].rstrip(". ") or type(error).__name__


def nodes() -> list[Node]:
    import ray

    found = [(one["NodeManagerAddress"], one["Resources"]) for one in ray.nodes() if one["Alive"]]
    return [
        Node(host, has.get("CPU", 0.0), has.get("GPU", 0.0), has.get("memory", 0.0) / 2**30) for host, has in found
    ]


async def _serve(head: str, output: int) -> None:
    loop, words = asyncio.get_running_loop(), asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    await Placer(head, output).run(words)


def main() -> int:
    output = os.dup(1)
    os.dup2(2, 1)  # what Ray prints
    die_with_parent()
    import ray

    try:
        context = ray.init(sys.argv[1] if sys.argv[1:] else "auto", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        show(f"rhymed: {_why(error)}", file=sys.stderr)
        return EX_AWAY
    head = str(context.address_info["gcs_address"])
    ready = Ready(head, str(ray.util.get_node_ip_address()), nodes())
    os.write(output, msgspec.json.encode(ready) + b"\n")
    asyncio.run(_serve(head, output))
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
