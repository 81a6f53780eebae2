"""Key files are removed in the middle of a locked run: it goes on, and a process that starts says what is missing.

With real processes, which are killed as well: `tests.hostile.remove`.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.actors import Reward
from rhymed.core import messages
from rhymed.core.errors import ConfigError
from rhymed.core.wire.keys import PUBLIC, ROLES, Keyring, KeyRole, make_keys, secret_name
from rhymed.core.wire.sockets import DONE, Client, Server
from tests.broker.cluster import until
from tests.hostile.locked import Locked, a_run, answer, ends_whole, locked_run
from tests.ports import free_ports

SERVERS = {"broker": messages.ToBroker, "store": messages.ToStore, "trainer": messages.ToWeights}


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    async with locked_run(tmp_path) as run:
        yield run


@pytest.mark.parametrize("name", [PUBLIC, "rollout.secret", "broker.secret", "."])
async def test_a_run_ends_whole_without_its_key_files(locked: Locked, name: str) -> None:
    trainer, _ = await a_run(locked)
    viewer = locked.link("viewer")
    assert isinstance(await answer(viewer, messages.GetQueues()), messages.Queues)
    reward = await locked.actor(Reward, "reward-0", work_s=0.05)
    await until(lambda: trainer.steps, "a step")
    assert locked.where.keyfolder is not None, "it has keys"
    _remove(locked.where.keyfolder / name)
    assert isinstance(await answer(viewer, messages.GetQueues()), messages.Queues)
    await ends_whole(locked, trainer)
    assert reward.joined == 1


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["its secret", PUBLIC, "."])
async def test_a_process_that_starts_without_its_key_files_says_which(
    tmp_path: Path, role: KeyRole, name: str
) -> None:
    make_keys(tmp_path / "keys", ROLES)
    _remove(tmp_path / "keys" / (secret_name(role) if name == "its secret" else name))
    cure = f"`rhymed keygen {tmp_path / 'keys'}` makes" if name == "." else "copy it from"
    with pytest.raises(ConfigError, match=f"No such file or directory; {cure}") as error:
        _start(Keyring(role, tmp_path / "keys"))
    assert str(error.value).startswith(f"{tmp_path / 'keys'}/")


def _start(keyring: Keyring) -> None:
    """What a process of this role opens first."""

    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        return DONE

    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    if keyring.role in SERVERS:
        Server(address, SERVERS[keyring.role], answer, keys=keyring)
    else:
        Client(address, "late", peer="broker", keys=keyring.to("broker"))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
