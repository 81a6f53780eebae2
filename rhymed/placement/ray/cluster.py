"""A Ray cluster as a run sees it: how it is reached, and the run's addresses there."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import msgspec

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.placement.plan import BROKER_PORT, RANKS_PORT, STORE_PORT
from rhymed.placement.ray.guardian import answers
from rhymed.placement.ray.room import problems
from rhymed.placement.ray.words import FromPlacer, Ready

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
    if address and not answers(address):
        raise ConfigError(f"nothing answers at {address}, the address of Ray's head: {_cure(address)}")
    try:
        done = subprocess.run(
            [*PLACER, address or "auto"], input=b"", capture_output=True, timeout=CONNECT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"Ray did not answer within {CONNECT_S:g} s: {_cure(address)}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        raise ConfigError(f"Ray cannot be used ({lines[-1].removeprefix('rhymed: ')}): {_cure(address)}")
    word = msgspec.json.decode(done.stdout.splitlines()[0], type=FromPlacer)
    assert isinstance(word, Ready)
    return word


def _cure(address: str) -> str:
    joins = f"ray start --address={address}" if address else "ray start --head"
    return (
        f"start this command on a machine of the cluster (here: {joins}), or by `ray job submit`; placement.address"
        " names the head"
    )


def addressed(config: Config, host: str) -> Config:
    """Broker and store are beside `rhymed run`, on the machine that others reach as `host`. A host that is given and
    is this machine's stays; so do ports. Raises `ConfigError`."""
    net = config.net
    if not (net.keys or net.insecure) and not _is_loopback(host):
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
        found["ranks"] = net.ranks or f"tcp://{_bracketed(host)}:{RANKS_PORT}"
    return config.model_copy(update={"net": net.model_copy(update=found)})


def _here(given: str, host: str, port: int) -> str:
    """A TCP address of this machine, at the given port if that is free."""
    name, _, number = given.removeprefix("tcp://").rpartition(":")
    if given.startswith("tcp://") and number.isdigit():
        port = int(number)
        host = name.strip("[]") if name and _is_ours(name.strip("[]")) else host
    elif given:
        port = 0
    return f"tcp://{_bracketed(host)}:{_free(host, port)}"


def _free(host: str, port: int) -> int:
    for wanted in (port, 0):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, wanted))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"no port can be bound at {host}, this machine's address in Ray's cluster")


def _is_ours(host: str) -> bool:
    try:
        with socket.create_server((host, 0)):
            return True
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def connect(config: Config, address: str) -> tuple[asyncio.subprocess.Process, Ready]:
    """A placer, ready for words. Raises `ConnectionError`."""
    if address and not await asyncio.to_thread(answers, address):
        raise ConnectionError(f"nothing answers at {address}")
    placer = await asyncio.create_subprocess_exec(
        *PLACER,
        address or "auto",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=16 << 20,
        start_new_session=True,
        env=os.environ | {"RHYMED_SUPERVISED": config.run.name, "RHYMED_SUPERVISOR": str(os.getpid())},
    )
    assert placer.stdout is not None
    try:
        line = await asyncio.wait_for(placer.stdout.readline(), CONNECT_S)
    except TimeoutError:
        line = b""
    if not line:
        if placer.returncode is None:
            placer.kill()
        await placer.wait()
        raise ConnectionError("Ray does not answer")
    word = msgspec.json.decode(line, type=FromPlacer)
    assert isinstance(word, Ready)
    return placer, word
