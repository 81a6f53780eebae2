"""Who may see the dashboard, and the token's file. The check of a request is pure.

On a loopback address every user of the machine has access, as to the run's sockets, but no other web page has: a
`Host` that is not this machine's name means DNS rebinding, and requests from other sites are refused. On any other
address the token is required: once as `/?token=…`, which becomes a cookie, or with every request, there or as
`Authorization: Bearer …`. The token appears in no log, no answer and no process list.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from rhymed.core import atomic
from rhymed.core.errors import ConfigError
from rhymed.core.wire.addresses import is_loopback

TOKEN_FILE = "dashboard.token"
TOKEN_VARIABLE = "RHYMED_HTTP_TOKEN"
TOKEN = re.compile(r"[A-Za-z0-9_-]{22,128}")
LOCAL_NAMES = ("ip6-localhost",)
OPEN_TO_ALL = ("/health",)
FOREIGN = ("cross-site", "same-site")  # of Sec-Fetch-Site: the request is another page's

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""On every answer: texts come from models and datasets, so only the page's own files may run."""


class AccessDenied(Exception):
    """`text`: a sentence for the user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text


@dataclass(frozen=True)
class SetCookie:
    """Redirect to `location`, with a cookie."""

    location: str
    name: str
    value: str


@dataclass(frozen=True)
class AccessControl:
    """`token`: empty on a loopback address, where none is required."""

    token: str = ""

    @property
    def cookie(self) -> str:
        """Its name. A host's ports share cookies, and each port may be another run's dashboard."""
        return f"rhymed-{hashlib.blake2b(self.token.encode(), digest_size=6).hexdigest()}"

    def check(
        self, path: str, query: str, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> SetCookie | None:
        """None: the request has access. Raises `AccessDenied`."""
        if headers.get("Sec-Fetch-Site") in FOREIGN and headers.get("Sec-Fetch-Mode") != "navigate":
            raise AccessDenied(403, "pages of other sites have no access to this dashboard")
        if not self.token:
            if not is_local_name(headers.get("Host", "")):
                raise AccessDenied(403, "this dashboard is only for its own machine: open it as http://127.0.0.1")
            return None
        if path in OPEN_TO_ALL:
            return None
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        if "token" in parameters and self._is(parameters.pop("token")):
            location = f"/?{urlencode(parameters)}" if parameters else "/"
            return SetCookie(location, self.cookie, self.token) if path == "/" else None
        kind, _, bearer = headers.get("Authorization", "").partition(" ")
        if (kind.lower() == "bearer" and self._is(bearer.strip())) or self._is(cookies.get(self.cookie, "")):
            return None
        raise AccessDenied(
            401, f"a token is required: open /?token=… once; it is in {TOKEN_FILE} in the run's folder"
        )

    def _is(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.token.encode())


def is_local_name(host: str) -> bool:
    """`host`: a Host header, with or without a port."""
    name = host.strip().lower()
    name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
    return name in LOCAL_NAMES or name.endswith(".localhost") or is_loopback(name)


def token_of(folder: Path, environ: Mapping[str, str] = os.environ) -> str:
    """From the environment, or from the run's token file, which is created if missing and readable only by its owner.
    Raises `ConfigError`."""
    if token := environ.get(TOKEN_VARIABLE, ""):
        if not TOKEN.fullmatch(token):
            raise ConfigError(
                f"{TOKEN_VARIABLE}: 22 to 128 letters, digits, - or _ are expected: openssl rand -hex 16"
            )
        return token
    file = folder / TOKEN_FILE
    try:
        return _read(file) or _make(file)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be used for the dashboard's token: {error.strerror}; or give one in {TOKEN_VARIABLE}"
        ) from None


def keep_token(folder: Path, token: str, environ: Mapping[str, str] = os.environ) -> None:
    """Writes a token file that has vanished again: its owner has the token from there. Raises `OSError`."""
    file = folder / TOKEN_FILE
    if token and not environ.get(TOKEN_VARIABLE) and folder.exists() and not os.path.lexists(file):
        atomic.write(file, token + "\n", mode=0o600)


def _read(file: Path) -> str:
    """Empty: there is none, or other users could read it."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    with open(descriptor) as stream:
        status = os.fstat(descriptor)
        private = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        token = stream.read(200).strip() if private else ""
    return token if TOKEN.fullmatch(token) else ""


def _make(file: Path) -> str:
    token = secrets.token_urlsafe(32)
    atomic.write(file, token + "\n", mode=0o600)
    return token
