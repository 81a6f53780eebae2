"""Addresses, ports that are taken, and the file that has the dashboard's address."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError
from rhymed.core.wire.addresses import HttpAddress
from rhymed.show.dashboard import listen


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8420", HttpAddress("127.0.0.1", 8420)),
        (":80", HttpAddress("127.0.0.1", 80)),
        ("http://localhost:0/", HttpAddress("localhost", 0)),
        ("[::1]:9", HttpAddress("::1", 9)),
        ("0.0.0.0:1", HttpAddress("0.0.0.0", 1)),
    ],
)
def test_addresses(text: str, address: HttpAddress) -> None:
    assert listen.parse_http(text) == address
    assert address.is_local == (address.host != "0.0.0.0")


@pytest.mark.parametrize("text", ["8420", "x", "h:", "h:x", "h:99999", "a b:1", "user@h:1", "h:1/path", "h:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        listen.parse_http(text)
    with pytest.raises(ConfigError, match="HOST:PORT"):
        load_config(None, [f"net.http={text!r}"], {})


def test_no_dashboard_and_the_default() -> None:
    assert Config.model_validate({"net": {"http": ""}}).net.http == ""
    assert listen.parse_http(Config().net.http).is_local


def test_a_taken_port_is_left_to_who_has_it() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        bound, address = listen.listen(HttpAddress("127.0.0.1", port))
        with bound:
            assert address.port not in (0, port)
            assert bound.getsockname()[1] == address.port


def test_a_flood_waits_in_the_queue_instead_of_trying_again() -> None:
    """A connection for which the queue has no place is tried again after a second, the owner's too."""
    many = min(500, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    bound, address = listen.listen(HttpAddress("127.0.0.1", 0))
    with bound, contextlib.ExitStack() as strangers:
        for _ in range(many):
            strangers.enter_context(socket.create_connection(("127.0.0.1", address.port), timeout=30))


def test_who_had_a_port_near_comes_back_to_it() -> None:
    bound, address = listen.listen(HttpAddress("127.0.0.1", 0))
    bound.close()
    wanted = HttpAddress("127.0.0.1", max(1, address.port - 3))
    bound, again = listen.listen(wanted, address.port)
    bound.close()
    assert again == address
    bound, other = listen.listen(HttpAddress("127.0.0.1", address.port), 1)  # far from what is wanted now
    bound.close()
    assert other == address


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.1"):
        listen.listen(HttpAddress("192.0.2.1", 8420))
    with pytest.raises(ConfigError, match="cannot listen at no-such-host"):
        listen.listen(HttpAddress("no-such-host.invalid", 8420))


def test_where_it_is_can_be_read(tmp_path: Path) -> None:
    assert listen.read(tmp_path) is None
    listen.write(tmp_path, HttpAddress("127.0.0.1", 81))
    file = tmp_path / listen.ADDRESS_FILE
    assert file.read_text() == '{"url": "http://127.0.0.1:81/"}\n'
    assert listen.read(tmp_path) == HttpAddress("127.0.0.1", 81)
    os.utime(file, (1, 1))
    assert listen.read(tmp_path, since=2) is None
    for nonsense in ("", "[]", '{"url": 3}', '{"url": "http://h"}'):
        file.write_text(nonsense)
        assert listen.read(tmp_path) is None
