"""The page's own files. Only the listed types are served, and nothing outside the folder or hidden in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from string import Template

from aiohttp import web

from rhymed.dashboard.middleware import error

STATIC = (Path(__file__).parent / "static").resolve()
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
"""Suffix -> content type."""

ONE_RUN = "views/main.js"
SEVERAL_RUNS = "several/main.js"


def page(script: str) -> web.Response:
    """The page whose contents this script makes."""
    text = Template((STATIC / "page.html").read_text()).substitute(script=script)
    return web.Response(text=text, headers={"Content-Type": TYPES[".html"], "Cache-Control": "no-cache"})


async def send(name: str) -> web.StreamResponse:
    """Browsers cache it, and ask each time whether it has changed."""
    file = STATIC / name
    kind = TYPES.get(file.suffix.lower())
    if kind is None or not await asyncio.to_thread(_is_inside, file):
        return error(404, f"the dashboard has no file {name}")
    return web.FileResponse(file, headers={"Content-Type": kind, "Cache-Control": "no-cache"})


def _is_inside(file: Path) -> bool:
    try:
        path = file.resolve()
        return path.is_file() and not any(part.startswith(".") for part in path.relative_to(STATIC).parts)
    except (OSError, ValueError):
        return False
