"""vLLM's tool parsers, in a process of their own: a policy's text may make one loop, recurse or raise.

Invariant: whatever a text does to a parser, it costs `LIMIT_S` of processor time at most, and the policy gets an
error; the policy never gets an error that the machine caused. The process is started when a parser is first needed,
once for a tokenizer, and again when it was killed. Thread-safe.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import IO, Any, BinaryIO, cast

from rhymed.core.errors import ConfigError, EnvironmentDown
from rhymed.core.service.children import exit_reason
from rhymed_workers.sandbox.frames import claim_pipes, get, put

log = logging.getLogger(__name__)

LIMIT_S = 5.0  # of processor time, for one text
PATIENCE_S = 60.0  # until a process is killed that does not keep to the limit, as one in C code
START_S = 300.0  # for the imports of vLLM
ENDING_S = 5.0  # from the end of a process's pipe to its own
ERRORS_BYTES = 2000  # of the end of its stderr in messages
TRIES = 2  # processes that a text may end

Tools = Sequence[dict[str, Any]]


class Unreadable(Exception):
    """Why the parser cannot read a text."""


class Parsers:
    """Its process ends with it, at the latest when Python exits."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None  # what the process writes on stderr
        self._lock = threading.Lock()
        self._open = ExitStack()
        weakref.finalize(self, self._open.close)

    def check(self, name: str, tools: Tools) -> None:
        """Raises `ConfigError` for a parser that does not exist, or raises for any text; `EnvironmentDown` if the
        process does not start."""
        if find_spec("vllm") is None:
            raise ConfigError(f"environment.parser = {name!r} is one of vLLM's, which is not installed")
        answer = self._ask(name, tools, "Hello.")
        if there := answer.get("there"):
            raise ConfigError(f"environment.parser: there is no {name!r}; choose hermes or one of vLLM's: {there}")
        if error := answer.get("error"):
            raise ConfigError(
                f"environment.parser = {name!r} cannot be used with this model; it may be made for another tokenizer:"
                f" {error}"
            )

    def read(self, name: str, tools: Tools, text: str) -> tuple[list[tuple[str, str]], str]:
        """(name, arguments as JSON) of each call, and the rest of the text. Raises `Unreadable`, and
        `EnvironmentDown` if the process does not start."""
        answer = self._ask(name, tools, text)
        if error := answer.get("error"):
            raise Unreadable(error)
        return [(called, arguments) for called, arguments in answer["calls"]], answer["rest"]

    def close(self) -> None:
        self._process = self._errors = None
        self._open.close()

    def _ask(self, name: str, tools: Tools, text: str) -> dict[str, Any]:
        """The machine may also end a process: only a text that ends two processes is to blame."""
        request, why = json.dumps([name, list(tools), text]).encode(), ""
        with self._lock:
            for _ in range(TRIES):
                process = self._process or self._start()
                try:
                    answer: dict[str, Any] = json.loads(_exchange(process, request, PATIENCE_S))
                except OSError as error:
                    why = self._ended(process, error)
                else:
                    assert self._errors is not None, "it has a process"
                    self._errors.seek(0)  # an offset that the process shares
                    self._errors.truncate()
                    return answer
        log.warning("%s ends its process with a text of %d characters, %d times: %s", name, len(text), TRIES, why)
        return {"error": "the parser ends its process or takes too long with this text"}

    def _start(self) -> subprocess.Popen[bytes]:
        """Starts the process. Raises `EnvironmentDown` if it does not become able to read texts."""
        self._errors = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  it lives as long as the process
        process = subprocess.Popen(
            [sys.executable, "-m", "rhymed_workers.sessions.parsing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._open.callback(_end, process)
        try:
            _exchange(process, pickle.dumps(self._tokenizer), START_S)
        except OSError as error:
            why = self._ended(process, error)
            log.error("the process of vLLM's tool parsers does not start: %s", why)
            raise EnvironmentDown(f"the process of vLLM's tool parsers does not start: {why}") from None
        self._process = process
        return process

    def _ended(self, process: subprocess.Popen[bytes], error: OSError) -> str:
        """The reason, with the end of its output, in one line."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
        why = str(error) if isinstance(error, TimeoutError) else f"it ended ({exit_reason(process.poll() or 0)})"
        assert self._errors is not None, "it has a process"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - ERRORS_BYTES))
        written = " ".join(self._errors.read().decode(errors="replace").split())
        self.close()
        return f"{why}: {written}" if written else why


def _exchange(process: subprocess.Popen[bytes], body: bytes, within_s: float) -> bytes:
    """The process's answer. Raises `OSError`; kills a process that has not read and answered in time."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(within_s, kill)
    timer.daemon = True
    timer.start()
    try:
        put(cast(BinaryIO, process.stdin), body)
        answer = get(cast(BinaryIO, process.stdout))
    except OSError:
        if not late.is_set():
            raise
        answer = None
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"no answer within {within_s:g} s")
    if answer is None:
        raise BrokenPipeError("its process ended")
    return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # a request that could not be written is sent again
            cast(BinaryIO, pipe).close()


@lru_cache(maxsize=4)
def parsers_for(tokenizer: Any) -> Parsers:
    return Parsers(tokenizer)


# What runs in the process of the parsers.


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until the pipe is closed. The first answer, which is empty, reports that the process can
    read."""
    tokenizer = pickle.loads(get(requests) or b"")  # from the parent process
    import vllm.entrypoints.openai.chat_completion.protocol
    import vllm.tool_parsers  # noqa: F401

    signal.signal(signal.SIGPROF, _late)
    put(answers, b"")
    while (body := get(requests)) is not None:
        name, tools, text = json.loads(body)
        try:
            answer = _answer(tokenizer, name, tools, text)
        except Exception as error:  # a parser may raise any error: the policy reads it
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        put(answers, json.dumps(answer).encode())


def _answer(tokenizer: Any, name: str, tools: list[dict[str, Any]], text: str) -> dict[str, Any]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    try:
        kind = ToolParserManager.get_tool_parser(name)
    except KeyError:
        return {"there": ", ".join(sorted(ToolParserManager.list_registered()))}
    asked = ChatCompletionRequest(messages=[{"role": "user", "content": ""}], tools=tools or None)
    parser = kind(tokenizer, asked.tools)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        found = parser.extract_tool_calls(text, asked)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    calls = [[call.function.name, call.function.arguments or ""] for call in found.tool_calls]
    return {"calls": calls, "rest": found.content or ""}


def _late(*_: object) -> None:
    raise TimeoutError(f"reading it took more than {LIMIT_S:g} s of processor time")


if __name__ == "__main__":
    serve(*claim_pipes())
