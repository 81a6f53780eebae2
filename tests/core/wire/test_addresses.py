"""Which addresses are this machine's own, and whose sockets are used."""

import os
import socket
from pathlib import Path

import pytest

from rhymed.core.errors import AddressRefused
from rhymed.core.wire import addresses

OPEN = ("tcp://0.0.0.0:1", "tcp://10.0.0.1:1", "tcp://*:1", "tcp://some.host:1", "tcp://[::]:1")
LOCAL = ("tcp://127.0.0.1:1", "tcp://[::1]:1", "ipc:///tmp/x", "inproc://x")


@pytest.mark.parametrize("address", OPEN)
def test_an_open_address_needs_keys_or_a_word(address: str) -> None:
    with pytest.raises(AddressRefused, match=r"rhymed keygen.*--insecure"):
        addresses.check_open(address, locked=False, insecure=False)
    addresses.check_open(address, locked=True, insecure=False)
    addresses.check_open(address, locked=False, insecure=True)
    assert addresses.is_lockable(address)


@pytest.mark.parametrize("address", LOCAL)
def test_a_local_address_needs_neither(address: str) -> None:
    addresses.check_open(address, locked=False, insecure=False)
    assert addresses.is_lockable(address) == address.startswith("tcp")


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AddressRefused, match="no port 65536"):
        addresses.check_port("tcp://127.0.0.1:65536")
    addresses.check_port("tcp://127.0.0.1:65535")


def test_a_living_socket_is_left_alone_and_a_dead_one_goes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s"
    addresses.claim(str(path))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(AddressRefused, match="living process"):
            addresses.claim(str(path))
    addresses.claim(str(path))
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_socket_in_another_users_folder_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, 4321, 4321)
    with pytest.raises(AddressRefused, match="belongs to another user"):  # root, too
        addresses.check_owner(str(tmp_path / "s"))
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(AddressRefused, match="belongs to another user"):
        addresses.check_owner(str(tmp_path / "s"))
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    addresses.check_owner(str(tmp_path / "s"))
    tmp_path.chmod(0o1777)
    with pytest.raises(AddressRefused, match="every user may write"):
        addresses.check_owner(str(tmp_path / "s"))
