"""`python -m rhymed.placement.ray.placer HOST:PORT`: a run's connection to Ray, in a process of its own.

Ray ends the processes that are connected to it soon after its head is lost; the run has to continue. It reads `Start`
and `Stop` on standard input, and writes `Ready` or `Absent` once and then `Change`s, a line of JSON each. It ends
with its input, and Ray then ends its keepers. `Placer` has the connection; a `Keeper` is the actor that holds the
place of one process of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from typing import Any, TypeAlias

import msgspec

from rhymed.core.service.process import die_with_parent
from rhymed.core.tasks import watched
from rhymed.placement.ray.guardian import Ended, Order, lines_of_input


class Node(msgspec.Struct, frozen=True):
    """A living machine of the cluster, with what it has in all."""

    host: str
    cpus: float = 0.0
    gpus: float = 0.0
    memory_gib: float = 0.0


class Ready(msgspec.Struct, frozen=True, tag=True):
    head: str  # host:port of Ray's head
    host: str  # this machine's address in the cluster
    nodes: list[Node]


class Absent(msgspec.Struct, frozen=True, tag=True):
    why: str


class Start(msgspec.Struct, frozen=True, tag=True):
    """Find a place for a process, and start it there."""

    id: int
    name: str
    order: Order
    cpus: float = 1.0
    gpus: int = 0
    memory_gib: float = 0.0
    gang: int = 1  # machines of its gang
    number: int = 0  # its own among them


class Stop(msgspec.Struct, frozen=True, tag=True):
    id: int
    how: str  # `terminate` or `kill`


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a process: it has a place; `lost`: why that is gone; or it has ended."""

    id: int
    lost: str = ""
    ended: Ended | None = None


ToPlacer: TypeAlias = Start | Stop


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
                self._waiting[word.id] = watched(self._start(word), keep=self._tasks)
            elif waiting := self._waiting.pop(word.id, None):
                waiting.cancel()  # Ray would give it a place later, and count it as demand until then
                self.send(Change(word.id, ended=Ended(-signal.SIGTERM, "")))
            elif handle := self._keepers.get(word.id):
                handle.say.remote(word.how)

    def send(self, word: Change | Ready | Absent) -> None:
        os.write(self._output, msgspec.json.encode(word) + b"\n")

    async def _start(self, start: Start) -> None:
        import ray

        try:
            self.send(await self._kept(start))
        except ray.exceptions.RayActorError as error:
            if error.actor_init_failed:
                why = f"{error.error_msg.strip().splitlines()[-1]}: every node needs the same rhymed"
                self.send(Change(start.id, ended=Ended(1, why)))
            else:
                self.send(Change(start.id, lost="its machine, or Ray there, is gone"))
        except Exception as error:  # of Ray in many kinds; a process of which nobody hears would wait for ever
            self.send(Change(start.id, lost=_first_line(error)))
        finally:
            self._waiting.pop(start.id, None)
            if handle := self._keepers.pop(start.id, None):
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.kill(handle)

    async def _kept(self, start: Start) -> Change:
        import ray

        needs: dict[str, Any] = {"num_cpus": start.cpus, "num_gpus": start.gpus, "name": f"{start.name}#{start.id}"}
        needs |= {"memory": int(start.memory_gib * 2**30)} if start.memory_gib else {}
        first = ""
        if start.gang > 1:
            needs["scheduling_strategy"], first = await self._place_in_gang(start)
        keeper = ray.remote(Keeper).options(max_restarts=0, max_concurrency=4, **needs)
        handle = self._keepers[start.id] = keeper.remote(start.name, self._head, first)
        await handle.__ray_ready__.remote()
        self._waiting.pop(start.id, None)
        self.send(Change(start.id))
        ended = await handle.run.remote(msgspec.json.encode(start.order))
        if not ended:
            return Change(start.id, lost="what watched over it there was killed")
        return Change(start.id, ended=msgspec.json.decode(ended, type=Ended))

    async def _place_in_gang(self, start: Start) -> tuple[Any, str]:
        """One place on each of several machines, all at once or none; and the address of the first."""
        import ray
        from ray.util.placement_group import placement_group, placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if self._gang is None:
            each = {"CPU": start.cpus, "GPU": float(start.gpus), "memory": start.memory_gib * 2**30}
            bundle = {name: amount for name, amount in each.items() if amount}
            self._gang = placement_group([bundle] * start.gang, strategy="STRICT_SPREAD")
        group = self._gang
        await group.ready()
        node = placement_group_table(group)["bundles_to_node_id"][0]
        hosts = [str(one["NodeManagerAddress"]) for one in ray.nodes() if one["NodeID"] == node]
        return PlacementGroupSchedulingStrategy(group, start.number), hosts[0] if hosts else ""


class Keeper:
    """The actor of one process: it dies with its machine. Knows nothing of runs."""

    def __init__(self, name: str, head: str, ranks: str) -> None:
        """`ranks`: the address of its gang's first machine; empty: it has no gang."""
        import ray

        from rhymed.placement.ray import guardian  # this class travels by value: here it shows that rhymed is missing

        host = str(ray.util.get_node_ip_address())
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", guardian.__name__, name, str(os.getpid()), head, host, ranks or host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._guardian.wait()  # it has left a child of its own

    def run(self, order: bytes) -> bytes:
        """How the process ended (`Ended`); empty: it is lost. The order has secrets, which Ray would store with an
        argument of the constructor."""
        self._write(order)
        assert self._guardian.stdout is not None
        return self._guardian.stdout.readline()

    def say(self, how: str) -> None:
        self._write(how.encode())

    def _write(self, line: bytes) -> None:
        assert self._guardian.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and `run` reads how
            self._guardian.stdin.write(line + b"\n")
            self._guardian.stdin.flush()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(". ") or type(error).__name__


def _nodes() -> list[Node]:
    import ray

    found = [(one["NodeManagerAddress"], one["Resources"]) for one in ray.nodes() if one["Alive"]]
    return [
        Node(host, has.get("CPU", 0.0), has.get("GPU", 0.0), has.get("memory", 0.0) / 2**30) for host, has in found
    ]


async def _serve(address: str, output: int) -> None:
    import ray

    try:
        context = ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        return Placer("", output).send(Absent(_first_line(error)))
    placer = Placer(str(context.address_info["gcs_address"]), output)
    placer.send(Ready(str(context.address_info["gcs_address"]), str(ray.util.get_node_ip_address()), _nodes()))
    await placer.run(await lines_of_input())
    ray.shutdown()


def main() -> None:
    output = os.dup(1)
    os.dup2(2, 1)  # what Ray prints
    die_with_parent()
    asyncio.run(_serve(sys.argv[1] if sys.argv[1:] else "auto", output))


if __name__ == "__main__":
    main()
