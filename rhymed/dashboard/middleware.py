"""What every answer passes through: access control, errors as a status and a sentence, security headers."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from rhymed.dashboard.auth import HEADERS, AccessControl, AccessDenied, SetCookie
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

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def edge(access: AccessControl) -> Any:

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            cookie = access.check(request.path, request.query_string, request.headers, request.cookies)
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
        return response

    return checked


def error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": text}), content_type="application/json", headers={**HEADERS}
    )


def _redirect(cookie: SetCookie) -> web.Response:
    response = web.Response(status=303, headers={"Location": cookie.location})
    response.set_cookie(cookie.name, cookie.value, max_age=COOKIE_S, httponly=True, samesite="Lax")
    return response
