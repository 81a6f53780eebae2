"""A Ray cluster as a run sees it: how it is reached, and the run's addresses there.

`problems` compares what a run needs with what the machines have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import msgspec

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.text import counted
from rhymed.core.wire.addresses import bracketed, is_loopback
from rhymed.placement.plan import BROKER_PORT, RANKS_PORT, STORE_PORT, Seat, seats
from rhymed.placement.ray.guardian import LINE_BYTES, answers
from rhymed.placement.ray.placer import Absent, Node, Ready

CONNECT_S = 60.0
PLACER = (sys.executable, "-m", "rhymed.placement.ray.placer")


def prepared(config: Config) -> Config:
    """With the addresses that the run has on this cluster. Raises `ConfigError`: it cannot run there. Blocking."""
    ready = reach(config)
    if why := list(problems(config, ready.nodes)):
        raise ConfigError("\n".join(why))
    return addressed(config, ready.host)


def address_of(config: Config) -> str:
    """HOST:PORT of Ray's head; empty: Ray has to find it. Raises `ConfigError`."""
    found = config.placement.address or os.environ.get("RAY_ADDRESS", "")
    if "://" in found:
        raise ConfigError(
            f"RAY_ADDRESS = {found}: processes are placed from a machine of the cluster. Give that address to"
            " `ray job submit -- rhymed run …`, which starts this command there"
        )
    return "" if found in ("auto", "local") else found


def reach(config: Config) -> Ready:
    """Raises `ConfigError` with a cure if Ray is not installed or cannot be reached. Blocking."""
    if find_spec("ray") is None:
        raise ConfigError("placement.engine = 'ray' needs the package ray: pip install 'rhymed[ray]'")
    address = address_of(config)
    try:
        return asyncio.run(_reached(address))
    except ConnectionError as error:
        raise ConfigError(f"{error}: {_cure(address)}") from None


async def _reached(address: str) -> Ready:
    placer, ready = await connect("a check", address)
    assert placer.stdin is not None
    placer.stdin.close()
    await placer.wait()
    return ready


async def connect(run: str, address: str) -> tuple[asyncio.subprocess.Process, Ready]:
    """A placer, ready for words. Raises `ConnectionError`."""
    if address and not await answers(address):
        raise ConnectionError(f"nothing answers at {address}, the address of Ray's head")
    placer = await asyncio.create_subprocess_exec(
        *PLACER,
        address or "auto",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LINE_BYTES,
        start_new_session=True,
        env=os.environ | {"RHYMED_SUPERVISED": run, "RHYMED_SUPERVISOR": str(os.getpid())},
    )
    assert placer.stdout is not None
    why = f"Ray did not answer within {CONNECT_S:g} s"
    with contextlib.suppress(TimeoutError, msgspec.DecodeError):
        line = await asyncio.wait_for(placer.stdout.readline(), CONNECT_S)
        why = "Ray cannot be used"
        word = msgspec.json.decode(line, type=Ready | Absent)
        if isinstance(word, Ready):
            return placer, word
        why += f" ({word.why})"
    if placer.returncode is None:
        placer.kill()
    await placer.wait()
    raise ConnectionError(why)


def _cure(address: str) -> str:
    joins = f"ray start --address={address}" if address else "ray start --head"
    return (
        f"start this command on a machine of the cluster (here: {joins}), or by `ray job submit`; placement.address"
        " names the head"
    )


def addressed(config: Config, host: str) -> Config:
    """Broker and store are on the machine of `rhymed run`, on the machine that others reach as `host`. A host that is
    given and is this machine's stays; so do ports. Raises `ConfigError`."""
    net = config.net
    if not (net.keys or net.insecure) and not is_loopback(host):
        raise ConfigError(
            "placement.engine = 'ray' connects machines by TCP: make keys with `rhymed keygen FOLDER` and set"
            " net.keys to the folder, or, in a network that you trust, net.insecure = true"
        )
    found = {
        "broker": _here(net.broker, host, BROKER_PORT),
        "store": _here(net.store, host, STORE_PORT),
        "bind": net.bind,
    }
    if config.trainer.nodes > 1:
        found["ranks"] = net.ranks or f"tcp://{bracketed(host)}:{RANKS_PORT}"
    return config.model_copy(update={"net": net.model_copy(update=found)})


def _here(given: str, host: str, port: int) -> str:
    """A TCP address of this machine, at the given port if that is free."""
    name, _, number = given.removeprefix("tcp://").rpartition(":")
    if given:
        port = int(number) if number.isdigit() else 0
    for at in (name.strip("[]"), host) if name and number.isdigit() else (host,):
        for wanted in (port, 0):
            family = socket.AF_INET6 if ":" in at else socket.AF_INET
            with contextlib.suppress(OSError), socket.create_server((at, wanted), family=family) as probe:
                return f"tcp://{bracketed(at)}:{probe.getsockname()[1]}"
    raise ConfigError(f"no port can be bound at {host}, this machine's address in Ray's cluster")


# Whether a run's processes fit on a cluster. Pure.


def problems(config: Config, nodes: Sequence[Node]) -> Iterator[str]:
    """What the machines have too little of in all; what fits none of them waits for a place, and `rhymed run` says
    so. Store and broker are on the machine of `rhymed run`, whatever Ray has there."""
    asked = [seat for seat in seats(config, gpus=any(node.gpus for node in nodes)) if seat.kind != "pinned"]
    counts = {seat.name: seat.count for seat in asked}
    if config.placement.max:
        counts["rollout"] = min(counts["rollout"], max(1, config.placement.min))
    for what, field in (("GPUs", "gpus"), ("CPUs", "cpus"), ("GiB of memory", "memory_gib")):
        has = sum(getattr(node, field) for node in nodes)
        need = sum(getattr(seat, field) * counts[seat.name] for seat in asked)
        if need > has:
            yield (
                f"the run's processes need {need:g} {what}, and Ray's {counted(len(nodes), 'node')} have"
                f" {has:g}: lower trainer.nodes, trainer.gpus, the number of workers or placement.cpus, or add nodes;"
                " with placement.max the run starts with fewer rollout workers, and Ray's autoscaler may add nodes"
            )


def needs(seat: Seat) -> str:
    """Of one process."""
    parts = [counted(seat.gpus, "GPU")] if seat.gpus else []
    parts += [counted(seat.cpus, "CPU")]
    parts += [f"{seat.memory_gib:g} GiB"] if seat.memory_gib else []
    return ", ".join(parts)
