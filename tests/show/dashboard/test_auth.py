"""Who may serve: hosts, tokens, other sites' pages."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.errors import ConfigError
from rhymed.core.wire.addresses import HttpAddress
from rhymed.show.dashboard.auth import (
    TOKEN_FILE,
    AccessControl,
    AccessDenied,
    SetCookie,
    is_local_name,
    keep_token,
    token_of,
)

TOKEN = "t" * 43
EVERYWHERE = HttpAddress("0.0.0.0", 0)
HERE = ["localhost", "localhost:8420", "127.0.0.1:1", "127.9.9.9", "[::1]:80", "A.LocalHost"]
ELSEWHERE = [
    "",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.1",
    "[::2]",
    "::1",
    "[",
    "0",
]


@pytest.mark.parametrize("host", HERE)
def test_names_of_this_machine(host: str) -> None:
    assert is_local_name(host)


@pytest.mark.parametrize("host", ELSEWHERE)
def test_names_of_others(host: str) -> None:
    assert not is_local_name(host)


async def test_a_page_that_makes_its_name_point_here_gets_nothing(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        for path in ("/", "/api/run", "/api/news", "/static/views/main.js", "/health", "/nothing"):
            status, answer = await ask(path, headers={"Host": "evil.example"})
            assert status == 403
            assert "127.0.0.1" in answer["error"]


async def test_a_page_of_another_site_gets_nothing(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        assert (await ask("/api/news", headers=headers))[0] == 403
        assert (await ask("/api/run", headers=headers | {"Sec-Fetch-Site": "same-site"}))[0] == 403
        assert (await ask("/", headers=headers | {"Sec-Fetch-Mode": "navigate"}))[0] == 200  # a link may lead here
        assert (await ask("/api/run", headers={"Sec-Fetch-Site": "same-origin"}))[0] == 200


async def test_open_to_the_network_only_with_the_token(run: Path, serve: Any) -> None:
    async with serve(run, address=EVERYWHERE) as ask:
        token = (run / TOKEN_FILE).read_text().strip()
        for path in (
            "/",
            "/api/run",
            "/api/news",
            "/metrics",
            "/static/views/main.js",
            "/nothing",
            "/api/run?token=",
            "/?token=x",
        ):
            assert (await ask(path))[0] == 401, path
        for wrong in (token[:-1], token + "x", "", token.swapcase(), "é"):
            assert (await ask("/api/run", headers={"Authorization": f"Bearer {wrong}"}))[0] == 401
        assert (await ask("/api/run", headers={"Authorization": f"Basic {token}"}))[0] == 401
        assert (await ask("/health"))[0] == 200
        assert (await ask("/api/run", headers={"Authorization": f"Bearer {token}"}))[0] == 200
        assert (await ask(f"/api/run?token={token}"))[0] == 200
        assert (await ask("/api/run"))[0] == 401  # that was no visit of the page: no cookie


async def test_the_token_becomes_a_cookie_and_leaves_the_address(run: Path, serve: Any) -> None:
    async with serve(run, address=EVERYWHERE) as ask:
        token = (run / TOKEN_FILE).read_text().strip()
        async with ask.session.get(f"{ask.url}/?token={token}&x=1", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "/?x=1")
            (cookie,) = response.cookies.values()
            assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
            named = {"Cookie": f"{cookie.key}={cookie.value}"}
        assert (await ask("/api/run", headers=named))[0] == 200
        assert (await ask("/api/run", headers={"Cookie": f"{cookie.key}=x"}))[0] == 401


async def test_the_token_is_in_no_answer(run: Path, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(run, address=EVERYWHERE) as ask:
        token = (run / TOKEN_FILE).read_text().strip()
        for path in ("/", "/api/run", "/api/nothing", "/static/nothing"):
            _, answer = await ask(f"{path}?token={token}" if path != "/" else path)
            assert token not in str(answer)
        _, answer = await ask("/api/run", headers={"Authorization": f"Bearer {token}"})
        assert token not in str(answer)
        await asyncio.sleep(0)
    assert token not in caplog.text


def test_it_may_pass_or_not() -> None:
    guard = AccessControl(TOKEN)
    assert guard.check("/", f"token={TOKEN}", {}, {}) == SetCookie("/", guard.cookie, TOKEN)
    assert guard.check("/api/run", "", {"Authorization": f"bearer {TOKEN}"}, {}) is None
    assert guard.check("/api/run", "", {}, {guard.cookie: TOKEN}) is None
    with pytest.raises(AccessDenied):
        guard.check("/api/run", "", {}, {AccessControl("other").cookie: TOKEN})
    with pytest.raises(AccessDenied):
        guard.check("/api/run", "", {"Host": "localhost"}, {})


def test_the_token_is_its_owners(tmp_path: Path) -> None:
    file = tmp_path / TOKEN_FILE
    token = token_of(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token_of(tmp_path) == token  # so that an open page works after a restart
    file.chmod(0o644)
    assert (other := token_of(tmp_path)) != token  # somebody may have read it
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("")
    assert token_of(tmp_path) not in ("", other)


async def test_a_token_file_that_vanishes_is_written_again(
    run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rhymed.show.dashboard.server.LOOK_S", 0.01)
    async with serve(run, address=EVERYWHERE) as ask:
        token = (run / TOKEN_FILE).read_text().strip()
        (run / TOKEN_FILE).unlink()
        async with asyncio.timeout(30):
            while not (run / TOKEN_FILE).exists():
                await asyncio.sleep(0.01)
        assert (run / TOKEN_FILE).read_text().strip() == token
        assert stat.S_IMODE((run / TOKEN_FILE).stat().st_mode) == 0o600
        assert (await ask("/api/run", headers={"Authorization": f"Bearer {token}"}))[0] == 200


def test_a_token_of_the_environment_is_written_nowhere(run: Path) -> None:
    keep_token(run, TOKEN, {"RHYMED_HTTP_TOKEN": TOKEN})
    keep_token(run, "")
    keep_token(run / "gone", TOKEN, {})
    assert not (run / TOKEN_FILE).exists()
    assert not (run / "gone").exists()


def test_a_link_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(TOKEN)
    (tmp_path / TOKEN_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be used"):
        token_of(tmp_path)


def test_the_environment_may_give_the_token(tmp_path: Path) -> None:
    assert token_of(tmp_path, {"RHYMED_HTTP_TOKEN": TOKEN}) == TOKEN
    assert not (tmp_path / TOKEN_FILE).exists()
    with pytest.raises(ConfigError, match="22 to 128"):
        token_of(tmp_path, {"RHYMED_HTTP_TOKEN": "short"})
