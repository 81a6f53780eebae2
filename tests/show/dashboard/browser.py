"""Headless Chromium over the DevTools protocol: open a page, click, type, read values, take a picture.

Owns one browser process and an event loop in a thread, so that tests are plain functions. Every page keeps what its
console reported and every address it asked for.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--remote-debugging-port=0",
)  # fmt: skip
DEADLINE_S = 60.0
NOT_OURS = "ERR_NETWORK_CHANGED"
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35}


def find():
    """The browser's path, or None. Where PATH does not say so, programs are where the system has them."""
    return next(
        (found for name in NAMES if (found := shutil.which(name) or shutil.which(name, path=os.defpath))), None
    )


class Loop:
    """An event loop in a thread; `run` waits for a coroutine of it."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def close(self):
        """Whoever still waits for something, as an answer to a page that is closed, ends with it."""

        async def end():
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Browser:
    def __init__(self, path, loop):
        self._loop = loop
        self._folder = tempfile.mkdtemp(prefix="page-", dir="/tmp")
        self._process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._ids = itertools.count(1)
        self._waiting = {}
        self.pages = {}
        loop.run(self._connect())

    async def _connect(self):
        file = Path(self._folder) / "DevToolsActivePort"
        until = time.monotonic() + DEADLINE_S
        while not (file.exists() and len(file.read_text().split()) == 2):
            assert time.monotonic() < until, "Chromium did not start"
            await asyncio.sleep(0.05)
        port, path = file.read_text().split()
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(f"http://127.0.0.1:{port}{path}", max_msg_size=0)
        self._reader = asyncio.create_task(self._read())

    async def _read(self):
        async for message in self._socket:
            content = json.loads(message.data)
            if "id" in content:
                self._waiting.pop(content["id"]).set_result(content)
            elif page := self.pages.get(content.get("sessionId")):
                page.hear(content["method"], content["params"])

    async def ask(self, method, session=None, **parameters):
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        answer = await self._waiting[number]
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url, width=1280, height=900, dark=False):
        target = self._loop.run(self.ask("Target.createTarget", url="about:blank"))["targetId"]
        session = self._loop.run(self.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self.pages[session] = Page(self, self._loop, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.size(width, height)
        page.prefer("dark" if dark else "light")
        page.ask("Page.navigate", url=url)
        page.arrive()
        return page

    def close(self):
        async def end():
            await self._socket.close()
            await self._reader
            await self._session.close()

        self._loop.run(end())
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        shutil.rmtree(self._folder, ignore_errors=True)


class Page:
    """`disturbed`: the machine's network changed (an interface came or went), so the browser gave requests up."""

    def __init__(self, browser, loop, target, session):
        self._browser, self._loop, self._target, self._session = browser, loop, target, session
        self.disturbed = False
        self.problems = []  # what the console reported
        self.asked = []  # addresses

    def hear(self, method, content):
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(content["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
            self.problems.append(str(content["args"]))
        elif method == "Log.entryAdded" and NOT_OURS in content["entry"]["text"]:
            self.disturbed = True
        elif method == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{content['entry']['text']} {content['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(content["request"]["url"])

    def ask(self, method, **parameters):
        return self._loop.run(self._browser.ask(method, self._session, **parameters))

    def read(self, script):
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, script, what=None):
        """Until the expression is true (or equal to `what`)."""
        until = time.monotonic() + DEADLINE_S
        while True:
            value = self.read(script)
            if value == what if what is not None else value:
                return value
            assert time.monotonic() < until, f"{script} is {value!r}; {self.problems}"
            time.sleep(0.03)

    def arrive(self):
        """Until the page's own scripts have run; once more where the browser lost some of its files."""
        until = time.monotonic() + DEADLINE_S
        while not self.read("document.querySelector('#head h1') != null"):
            assert time.monotonic() < until, f"the page did not begin; {self.problems}"
            if self.disturbed:
                self.disturbed = False
                self.ask("Page.reload")
            time.sleep(0.03)

    def text(self, selector):
        return self.read(f"document.querySelector({json.dumps(selector)})?.textContent")

    def count(self, selector):
        return self.read(f"document.querySelectorAll({json.dumps(selector)}).length")

    def place(self, selector):
        """Centre of the first such element, in sight."""
        self.wait(f"document.querySelector({json.dumps(selector)}) != null")
        return self.read(
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2, r.width, r.height] })"
            f"(document.querySelector({json.dumps(selector)}))"
        )

    def mouse(self, kind, x, y, **more):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def rest(self, selector):
        """Its place once it stays where it is: a page that has just changed moves what is on it."""
        until, last = time.monotonic() + DEADLINE_S, None
        while (found := self.place(selector)) != last:
            assert time.monotonic() < until, f"{selector} does not stay in one place"
            last = found
            time.sleep(0.05)
        return found

    def click(self, selector):
        x, y, *_ = self.rest(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def drag(self, x, y, to_x, to_y):
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseMoved", (x + to_x) / 2, (y + to_y) / 2, button="left", buttons=1)
        self.mouse("mouseMoved", to_x, to_y, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def key(self, key):
        more = {"windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper())), "key": key}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **more | ({"text": key} if len(key) == 1 else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **more)

    def size(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def shot(self, path, whole=False):
        """A PNG of what is in sight, or of the whole page."""
        picture = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(picture))

    def close(self):
        self._loop.run(self._browser.ask("Target.closeTarget", targetId=self._target))
        self._browser.pages.pop(self._session, None)
