"""This machine: memory, disk, the run's folder, and whether its addresses can be bound."""

from __future__ import annotations

import json
import os
import shutil
import socket
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rhymed.check.memory import Machine
from rhymed.check.report import Section
from rhymed.core import private
from rhymed.core.config import Config, Net, Trainer
from rhymed.core.errors import ConfigError
from rhymed.core.run import folder as runs
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.wire.addresses import REMEDY, is_local, is_lockable
from rhymed.core.wire.keys import ROLES
from rhymed.placement.gpus import NOT_SHARED, listed, trains_on_gpus, transport
from rhymed_workers.engines.startup import missing_library, try_model
from rhymed_workers.trainer.distributed.seats import too_few

MAX_IPC = 107  # bytes of a socket's path
SHARED_MEMORY = Path("/dev/shm")
OPEN_RANKS = (
    "trainer.nodes: the ranks' own traffic (net.ranks, gloo, NCCL) is neither encrypted nor authenticated, even"
    " with net.keys: let only this run's machines reach each other on these ports"
)


def measure(folder: Path) -> Machine:
    """`folder` need not exist."""
    import psutil

    memory = psutil.virtual_memory()
    shared = shutil.disk_usage(SHARED_MEMORY).free if os.access(SHARED_MEMORY, os.W_OK) else 0
    return Machine(memory.total, memory.available, shared, shutil.disk_usage(_existing(folder)).free)


def device_problems(trainer: Trainer) -> Iterator[str]:
    """Loads torch only if a GPU, or several, are asked for."""
    if trainer.engine != "torch" or trainer.device == "cpu" or (trainer.device == "auto" and trainer.world == 1):
        return
    try:
        import torch
    except ImportError:  # the trainer runs elsewhere
        return
    found = torch.cuda.device_count()
    if trainer.world > 1 and found < trainer.gpus:
        yield too_few(trainer.gpus, found)
    elif not torch.cuda.is_available():
        yield (
            "trainer.device = 'cuda', but torch finds no GPU on this machine: set it to auto or cpu, or install"
            " a torch that was built for the GPU"
        )


def unused_gpus(config: Config) -> Iterator[str]:
    """GPUs on which the trainer would silently not train. Loads torch only if there are some."""
    trainer = config.trainer
    if not trains_on_gpus(config) or trainer.device != "auto" or trainer.world > 1 or (found := listed()) is None:
        return
    try:
        import torch
    except ImportError:  # the trainer runs elsewhere
        return
    with warnings.catch_warnings(record=True) as caught:  # the reason, such as a driver that is too old
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return
    why = f" ({str(caught[0].message).partition(' (Triggered')[0]})" if caught else ""
    yield (
        f"trainer.device = 'auto': the trainer will train on the CPU, as torch {torch.__version__} cannot use the"
        f" GPUs that nvidia-smi lists, {found}{why}: install a torch that was built for them and their driver, or set"
        " trainer.device to cpu"
    )


def engine_problems(config: Config) -> Iterator[str]:
    """Of the vLLM that is installed here, by its metadata; an engine elsewhere is checked when it starts."""
    if config.rollout.engine != "vllm":
        return
    from rhymed.histospec.versions import installed, release_of, unknown, v2_lacks, without_v2
    from rhymed_workers.engines.launch import environment_problem

    version = installed()
    rollout = config.rollout
    if version and release_of(version) is None:
        yield unknown(version)
    elif version and rollout.runner == "v2" and (lacks := v2_lacks(config, version, triton=True)):
        yield f"rollout.runner = 'v2', but {lacks}: {without_v2(config)}"
    if problem := environment_problem(os.environ, runner=rollout.runner, exact=rollout.exact):
        yield problem


def start_problems(config: Config, folder: Path | None) -> Iterator[str]:
    """Why an engine could not start on this machine. Takes seconds at the first call, see `startup.try_model`.
    `folder`: the model's; None: it could not be read."""
    rollout = config.rollout
    if folder and config.drafts.by_engine:
        yield from _head_problems(rollout.engine_args["speculative_config"], folder)
    if rollout.engine != "vllm" or not rollout.workers or config.placement.engine != "local":
        return
    if why := missing_library() or (try_model(folder) if folder else ""):
        yield f"vLLM cannot start on this machine: {why}"


def _head_problems(speculative: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Of the engine's own head. `folder`: the model's."""
    where, model = "rollout.engine_args.speculative_config", speculative.get("model")
    if model and Path(model).is_absolute() and not Path(model).is_dir():
        yield f"{where}.model = {model!r} is not a folder: name the head's, or its name on the hub"
    if speculative["method"] != "mtp" or model:
        return
    about = json.loads((folder / "config.json").read_text())
    named = about | (about.get("text_config") or {})
    if not any(value and ("nextn" in name or "mtp" in name) for name, value in named.items()):
        yield (
            f"{where}.method = 'mtp', but the model has no such head: its config.json names none"
            " (num_nextn_predict_layers): take an EAGLE-3 head for it, or set drafts.method = 'history'"
        )


def describe(config: Config, *, resume: bool = False) -> Section:
    section = Section("folder and addresses")
    taken = layout_of(config).config.exists() and not resume
    layout = layout_of(config if resume else runs.with_free_name(config))
    name = f" ({config.run.name} is taken by an earlier run)" if taken else ""
    section.add("folder", f"{layout.folder}{name}")
    if config.net.transport == "ipc" and transport(config) == "file":
        section.warnings.append(NOT_SHARED)
    section.add("broker", layout.broker)
    section.add("store", layout.store)
    section.add("weights", layout.weights)
    section.errors += problems(config.net, layout, resume=resume)
    here = config.placement.engine == "local"
    section.errors += device_problems(config.trainer) if here else ()
    section.warnings += unused_gpus(config) if here else ()
    if config.net.ranks:
        section.add("ranks", f"{config.net.ranks}, {config.trainer.world} on {config.trainer.nodes} nodes")
        if problem := address_problem(layout.listens(config.net.ranks), insecure=True):
            section.errors.append(f"net.ranks = {config.net.ranks}: {problem}")
        section.warnings.append(OPEN_RANKS)
    section.errors += engine_problems(config) if here else ()
    return section


def problems(net: Net, layout: RunLayout, *, resume: bool = False) -> Iterator[str]:
    """Why the run's processes could not use their folder or their addresses."""
    existing = _existing(layout.folder)
    if not existing.is_dir():
        yield f"run.folder: {existing} is a file; name another folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"run.folder: {existing} cannot be written to; name another folder, e.g. -o run.folder=..."
    if resume and layout.folder.is_dir():
        try:
            with runs.hold(layout):
                pass
        except ConfigError as error:
            yield str(error)
            return  # its addresses are in use as well
    yield from _key_problems(layout)
    for key, given in (("broker", layout.broker), ("store", layout.store), ("weights", layout.weights)):
        address = layout.listens(given)
        if given.startswith(f"ipc://{layout.sockets}/") and not resume and private.trouble(layout.sockets):
            continue  # those of a new run get another folder
        if problem := address_problem(address, insecure=net.insecure, locked=bool(net.keys)):
            yield f"net.{key} = {address}: {problem}"


def _key_problems(layout: RunLayout) -> Iterator[str]:
    """`rhymed run` starts every role here, so it needs every role's keys."""
    if layout.keyfolder is None or not any(map(is_lockable, (layout.broker, layout.store, layout.weights))):
        return
    for role in ROLES:
        try:
            layout.keys(role).own_public()
        except ConfigError as error:
            yield f"net.keys: {error}"


def address_problem(address: str, *, insecure: bool, locked: bool = False) -> str:
    """Why a server cannot be bound there, or others cannot connect; empty if they can."""
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return _ipc_problem(rest)
    if scheme != "tcp":
        return "an address begins with tcp:// (host:port) or ipc:// (path)"
    host, _, port = rest.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        return "write it as tcp://host:port with a port from 1 to 65535"
    if host == "*":
        return "workers cannot connect to *: name this machine's address"
    if not (insecure or locked or is_local(address)):
        return f"it is open to the network and there are no keys: {REMEDY}"
    return _port_problem(urlsplit(address).hostname or host, int(port))


def _ipc_problem(path: str) -> str:
    if not path:
        return "a path is missing"
    if (length := len(os.fsencode(path))) > MAX_IPC:
        return (
            f"the path has {length} bytes, a socket's may have {MAX_IPC}: choose a shorter one (or a shorter TMPDIR)"
        )
    if not os.path.exists(path):
        folder = _existing(Path(path).parent)
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written to"
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return ""  # of a dead process; the server removes it
    return "a living process serves it already: end that run, or choose another address"


def _port_problem(host: str, port: int) -> str:
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return (
            f"cannot be bound ({error.strerror or error}): name an address of this machine, where `rhymed run` binds"
            " all three, and a free port: `ss -tlnp` shows whose it is"
        )
    return ""


def _existing(path: Path) -> Path:
    """The path, or the nearest parent that exists."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
