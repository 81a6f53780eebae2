"""What every answer passes through: access control, errors as a status and a sentence, security headers."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from rhymed.dashboard.auth import HEADERS, OPEN_TO_ALL, AccessControl, AccessDenied, SetCookie
from rhymed.dashboard.connections.connection import CONNECTIONS
from rhymed.errors import ConfigError, MalformedMessage, Overloaded, RhymedError, UnknownSample

log = logging.getLogger(__name__)

COOKIE_S = 30 * 24 * 3600
STATUS: dict[type[RhymedError], int] = {
    MalformedMessage: 400,
    UnknownSample: 404,
    ConfigError: 404,
    Overloaded: 503,
}
"""All other errors are 500."""

CLOSING = (401, 403, 503)
"""A refused client keeps no connection."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def edge(access: AccessControl) -> Any:

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            cookie = access.check(request.path, request.query_string, request.headers, request.cookies)
            with _answering(request):
                response: web.StreamResponse = _redirect(cookie) if cookie else await handler(request)
        except AccessDenied as refusal:
            response = error(refusal.status, refusal.text)
        except web.HTTPException as failure:
            response = error(failure.status, f"{request.method} {request.path}: {failure.reason.lower()}")
        except RhymedError as failure:
            response = error(STATUS.get(type(failure), 500), str(failure))
        except ConnectionError:
            raise
        except Exception as failure:
            log.exception("an answer of the dashboard failed")
            response = error(500, f"this is a bug in the dashboard: {type(failure).__name__}")
        if not response.prepared:
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
            if response.status in CLOSING:
                response.force_close()
        return response

    return checked


def _answering(request: web.Request) -> contextlib.AbstractContextManager[None]:
    connections = request.app.get(CONNECTIONS)
    if connections is None:  # the application is served in another way
        return contextlib.nullcontext()
    return connections.answering(request.transport, proven=request.path not in OPEN_TO_ALL)


def when_lost(request: web.Request, call: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Calls it if the client leaves while it is served."""
    connections = request.app.get(CONNECTIONS)
    return connections.when_lost(request.transport, call) if connections is not None else contextlib.nullcontext()


def error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": text}), content_type="application/json", headers={**HEADERS}
    )


def _redirect(cookie: SetCookie) -> web.Response:
    response = web.Response(status=303, headers={"Location": cookie.location})
    response.set_cookie(cookie.name, cookie.value, max_age=COOKIE_S, httponly=True, samesite="Lax")
    return response
