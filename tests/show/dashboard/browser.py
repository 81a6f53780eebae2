"""Chromium as the system has it, driven by Playwright: roles, names and data of a page, as a reader comes by them."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest

try:
    from playwright.sync_api import Error, expect, sync_playwright
except ImportError:
    sync_playwright = expect = None

__all__ = ["chromium", "expect", "visit", "watch"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
DEADLINE_MS = 60_000
NOT_OURS = "ERR_NETWORK_CHANGED"  # an interface of this machine came or went, and the browser gave its requests up


@contextlib.contextmanager
def chromium():
    """Opens pages (`new_page`). Where PATH does not name the browser, it is where the system has its programs."""
    if sync_playwright is None:
        pytest.skip("Playwright is not installed (make setup, or pip install playwright)")
    places = (shutil.which(name, path=at) for name in NAMES for at in (None, os.defpath))
    path = next(filter(None, places), None)
    if path is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    expect.set_options(timeout=DEADLINE_MS)
    with sync_playwright() as it, it.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(DEADLINE_MS)
        yield context


def watch(page):
    """Two lists that grow: what its console reports, and the addresses that it asks for."""
    problems, asked = [], []

    def hear(text):
        if NOT_OURS not in text:
            problems.append(text)

    loud = ("error", "warning", "assert")
    page.on("console", lambda said: said.type in loud and hear(f"{said.text} {said.location['url']}"))
    page.on("pageerror", lambda error: hear(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    return problems, asked


def visit(page, url):
    """Once more where the browser lost some of its files."""
    with contextlib.suppress(Error):
        page.goto(url)
    if not page.get_by_role("heading", level=1).count():
        page.goto(url)
