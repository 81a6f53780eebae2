"""One question to a judge's server: a request that is repeated while its failure may pass.

No connection, no answer in time, 429 and 5xx are repeated for `patience_s`, with growing pauses or those that the
server asks for; other failures are final. Answers are bounded, redirects are refused (the API key would follow them),
and the key is in no message.

`Client` asks; `body_of` makes the request of rubric and row.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from typing import Any

import aiohttp

from rhymed.core.config.reward import Judge
from rhymed.core.errors import RowUnsuitable
from rhymed.core.printable import line
from rhymed.core.text import truncated
from rhymed.inputs.chats import Chat
from rhymed.inputs.rows import Row
from rhymed_workers.reward.scorers.answer import reference

PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # between attempts
ANSWER_BYTES = 4 << 20
REASON_CHARS = 300
PASSING = {408, 409, 425, 429}
"""HTTP states of a server that may recover, besides 5xx."""


class AskFailed(Exception):
    """For good; its text is a sentence without its subject, the judge. `late`: the time was up."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class Passing(Exception):
    """A failure that another attempt may not see."""

    def __init__(self, text: str, *, late: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.late, self.pause_s = late, pause_s


class Client:
    """`patience_s` may be less than the judge's, for a check. `requests` and `repeats` are counted."""

    def __init__(self, judge: Judge, patience_s: float | None = None) -> None:
        self._judge, self._address = judge, address_of(judge)
        self._patience_s = judge.patience_s if patience_s is None else min(patience_s, judge.patience_s)
        self._key = os.environ.get(judge.key_variable, "").strip()
        self._free = asyncio.Semaphore(judge.concurrency)
        self._session: aiohttp.ClientSession | None = None
        self.requests = self.repeats = 0

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, body: bytes, spread: float) -> Any:
        """The answer's JSON. `spread`, 0 to 1, makes the pauses of requests different. Raises `AskFailed`."""
        async with self._free:
            pause_s, failed = PAUSE_S, 0.0
            while True:
                try:
                    return await self._attempt(body)
                except Passing as error:
                    failed = failed or time.monotonic()
                    waited_s = time.monotonic() - failed
                    rest_s = max(error.pause_s, pause_s * (0.5 + spread))
                    if waited_s + rest_s > self._patience_s:
                        repeated = f"; repeated for {waited_s:.0f} s" if waited_s >= 1 else ""
                        raise AskFailed(f"{error}{repeated}", late=error.late) from None
                self.repeats += 1
                await asyncio.sleep(rest_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._key:
                if not self._key.isascii() or line(self._key, len(self._key)) != self._key:
                    variable = self._judge.key_variable
                    raise AskFailed(f"cannot be asked: the variable {variable} has what no API key can have")
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._judge.concurrency),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._judge.timeout_s),
                auto_decompress=False,
            )
        return self._session

    async def _attempt(self, body: bytes) -> Any:
        self.requests += 1
        try:
            async with self._open().post(self._address, data=body, allow_redirects=False) as response:
                self._check(response, await _read(response) if response.status != 200 else b"")
                return json.loads(await _read(response))
        except TimeoutError:
            raise Passing(f"gave no answer within timeout_s = {self._judge.timeout_s:g} s", late=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Passing(f"cannot be asked: {truncated(str(error) or type(error).__name__, REASON_CHARS)}") from None
        except (ValueError, RecursionError):
            raise AskFailed("gave an answer that is not JSON: is url that of an OpenAI-compatible API?") from None

    def _check(self, response: aiohttp.ClientResponse, content: bytes) -> None:
        """Raises if the state is not 200."""
        status, said = response.status, self._said(content)
        if status == 200:
            return
        if status in PASSING or status >= 500:
            raise Passing(
                f"answers {status}: {said}", pause_s=_asked_pause_s(response.headers.get("Retry-After", ""))
            )
        if 300 <= status < 400:
            where = truncated(response.headers.get("Location", "nowhere"), REASON_CHARS)
            raise AskFailed(f"answers {status}, a redirect to {where}: write the address itself as url")
        if status in (401, 403):
            variable = self._judge.key_variable
            held = "is refused" if self._key else "is not set"
            raise AskFailed(f"answers {status}: the API key is read from the variable {variable}, which {held}")
        if status == 404:
            raise AskFailed(
                f"answers 404: it has no model {self._judge.model!r}, or not the path of api = {self._judge.api!r}:"
                f" {said}"
            )
        raise AskFailed(f"answers {status}: {said}")

    def _said(self, content: bytes) -> str:
        text = content[: 1 << 16].decode(errors="replace")
        return truncated(
            " ".join((text.replace(self._key, "...") if self._key else text).split()) or "nothing", REASON_CHARS
        )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Raises `AskFailed` for more than any verdict has."""
    content = bytearray()
    async for part in response.content.iter_chunked(1 << 16):
        content += part
        if len(content) > ANSWER_BYTES:
            raise AskFailed(f"gave an answer of more than {ANSWER_BYTES >> 20} MiB")
    return bytes(content)


def _asked_pause_s(header: str) -> float:
    """Of `Retry-After` in seconds; dates are rare, and left out."""
    try:
        return min(LONGEST_PAUSE_S, max(0.0, float(header)))
    except ValueError:
        return 0.0


# What a judge is asked about a response: the body of a request, from the rubric and the row. Pure.

NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A placeholder. Other braces, such as those of JSON in a rubric, stay as they are."""
THOUGHT_ENDS = "</think>"

PATHS = {"chat": "chat/completions", "classify": "classify", "pooling": "pooling", "score": "score"}


def address_of(judge: Judge) -> str:
    """vLLM serves the paths of reward models next to /v1."""
    base = judge.url.rstrip("/")
    return f"{base if judge.api == 'chat' else base.removesuffix('/v1')}/{PATHS[judge.api]}"


def body_of(judge: Judge, chat: Chat, response: str, row: Row) -> bytes:
    """The request's JSON, always the same for the same arguments. Raises `RowUnsuitable`."""
    shown = response if judge.thinking else response.rpartition(THOUGHT_ENDS)[2].strip()
    if judge.api == "chat":
        system = [{"role": "system", "content": judge.system}] if judge.system else []
        asked: dict[str, Any] = {
            "messages": [*system, {"role": "user", "content": filled(judge.rubric, as_text(chat), shown, row)}]
        }
    elif judge.api == "score":
        asked = {"text_1": as_text(chat), "text_2": shown}
    else:
        asked = {"messages": [*chat, {"role": "assistant", "content": shown}]}
    options = judge.options if judge.api == "chat" else _without_sampling(judge)
    return json.dumps({"model": judge.model, **asked, **options}, sort_keys=True).encode()


def filled(rubric: str, prompt: str, response: str, row: Row) -> str:
    """Placeholders in what is filled in stay as they are."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == "prompt":
            return prompt
        if name == "response":
            return response
        return as_words(reference(row) if name == "ground_truth" and name not in row else _column(row, name))

    return NAME.sub(value, rubric)


def as_text(chat: Chat) -> str:
    """One message is its text; several are introduced by their roles."""
    if len(chat) == 1:
        return chat[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in chat)


def as_words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _column(row: Row, name: str) -> Any:
    if name not in row:
        raise RowUnsuitable(f"the judge's rubric names {{{name}}}, the row has the columns {', '.join(sorted(row))}")
    return row[name]


def _without_sampling(judge: Judge) -> dict[str, Any]:
    """The default of `options` is for judges that write."""
    return {} if judge.options == Judge.model_fields["options"].default else judge.options
