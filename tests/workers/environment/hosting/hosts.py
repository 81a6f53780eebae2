"""Hosts of user code in this process, without a jail: what is asked of a process with environments, asked here."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rhymed.core.config import Environment
from rhymed.inputs.chats import Chat
from rhymed_workers.environment.hosting.load import load_host
from rhymed_workers.environment.hosting.runner import Runner
from rhymed_workers.environment.hosting.tool import Host
from rhymed_workers.environment.protocol import Open, Step, Stepped, calls_text
from rhymed_workers.sessions.calls import Wanted

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Begin."}]


class Asked:
    def __init__(self, host: Host, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.host, self._run = host, run

    def open(self, row: str = "{}", name: str = "a") -> tuple[Chat, list[str]]:
        opened: tuple[Chat, list[str]] = self._run(self.host.open(Open(name, row, CHAT)))
        return opened

    def step(self, *calls: Wanted, text: str = "", name: str = "a", last: bool = False) -> Stepped:
        stepped: Stepped = self._run(self.host.step(Step(name, text, calls_text(calls), last=last)))
        return stepped

    def reported(self, tool: str, **arguments: Any) -> Any:
        (message,) = self.step(Wanted(tool, arguments)).messages
        return message["content"]


@contextmanager
def hosted(
    folder: Path, text: str = "", tools: str = "", factory: str = "", place: str = "", **settings: Any
) -> Iterator[Asked]:
    """Of a file with this text, or `place`: a factory of a package. Raises `EnvironmentFailed`."""
    file = folder / "mine.py"
    file.write_text(text)
    given: dict[str, str] = {
        "tools": f"{file}:{tools}" if tools else "",
        "factory": f"{file}:{factory}" if factory else "",
    }
    section = Environment.model_validate({**given, **({"factory": place} if place else {}), **settings})
    runner = Runner(section.timeout_s, lambda *_: None, lambda: None)
    try:
        host = load_host(section, runner)
    except BaseException:
        runner.loop.close()
        raise
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        yield Asked(host, lambda work: asyncio.run_coroutine_threadsafe(work, runner.loop).result(60))
    finally:
        runner.stop()
        thread.join(60)
        runner.loop.call_soon_threadsafe(runner.loop.stop)
        while runner.loop.is_running():
            time.sleep(0.001)
        runner.loop.close()
