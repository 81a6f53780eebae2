"""A teacher on a server with the OpenAI API: log-probs of prompts and responses from vLLM's /v1/completions.

One request per sample: the prompt's and the response's token ids as the prompt, `prompt_logprobs` for all of them.
Blocking for its caller, which runs on a thread without an event loop; requests run at the same time. A request that
fails in a way that may pass (no connection, too slow, 429, 5xx) is repeated for `patience_s` seconds after its first
failure; others end the step. The API key is read from the environment for each call and occurs in no message. vLLM
0.32 gives the log-probs of prompts at temperature 1, whatever the request says (`_get_prompt_logprobs_dict` in its
model runner), so other temperatures are refused before a run. Needs no torch.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Teacher
from rhymed.core.errors import TrainerError
from rhymed.core.text import truncated

PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0  # between attempts
WATCH_S = 0.25
REASON_CHARS = 300
TOLERANCE = 1e-3  # nats by which a log-prob may be above 0, for rounding
CERTAINLY_NOT = -1e9  # in place of -inf, which JSON does not have; vLLM writes -9999
PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
"""HTTP states of a server that may recover."""


class Passing(Exception):
    """A failure that another attempt may not see."""


class Scored(NamedTuple):
    """One sample's response tokens (axis N) and their K likeliest alternatives."""

    logprobs_N: NDArray[np.float32]
    ids_NK: NDArray[np.int64]  # -1 where the server gave fewer
    topk_NK: NDArray[np.float32]


@dataclass(frozen=True)
class Served:
    """A model on the server."""

    name: str
    context: int | None  # tokens; None: it does not say


class RemoteTeacher:
    """`name`: of the model on the server."""

    def __init__(self, config: Teacher, name: str) -> None:
        self._config, self._name = config, name

    def score(
        self,
        sequences: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        topk: int,
        progress: Any = lambda done, total: None,
    ) -> list[Scored]:
        """Of each (prompt, response). `topk` 0: the response's own tokens only. Raises `TrainerError`."""
        try:
            return asyncio.run(self._score(sequences, topk, progress))
        except BaseExceptionGroup as errors:  # all are of the first failure
            raise errors.exceptions[0] from None

    async def _score(self, sequences: Sequence[Any], topk: int, progress: Any) -> list[Scored]:
        done, free = 0, asyncio.Semaphore(self._config.concurrency)

        async def one(session: aiohttp.ClientSession, prompt: NDArray[Any], response: NDArray[Any]) -> Scored:
            nonlocal done
            async with free:
                scored = await self._one(session, prompt, response, topk)
            done += 1
            return scored

        async def watch() -> None:
            while done < len(sequences):  # also while no answer comes: the trainer may be stopping
                progress(done, len(sequences))
                await asyncio.sleep(WATCH_S)

        async with session_of(self._config) as session, asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            tasks = [group.create_task(one(session, *sequence)) for sequence in sequences]
            await asyncio.gather(*tasks)
            watching.cancel()
        progress(done, len(sequences))
        return [task.result() for task in tasks]

    async def _one(
        self, session: aiohttp.ClientSession, prompt: NDArray[Any], response: NDArray[Any], topk: int
    ) -> Scored:
        tokens = [*map(int, prompt), *map(int, response)]
        body = {
            "model": self._name,
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": topk,
            "return_token_ids": True,
        }
        answer = await ask(session, self._config, "completions", body)
        return read_logprobs(self._config.url, answer, tokens, len(response), topk)


def session_of(config: Teacher) -> aiohttp.ClientSession:
    """With the API key, if its variable is set."""
    key = os.environ.get(config.key_variable, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=config.timeout_s))


async def ask(
    session: aiohttp.ClientSession, config: Teacher, path: str, body: Any = None, patience_s: float | None = None
) -> Any:
    """The JSON answer to POST of `body`, or to GET. Repeats what may pass; raises `TrainerError` otherwise."""
    patience_s = config.patience_s if patience_s is None else patience_s
    address, pause_s, failed = f"{config.url.rstrip('/')}/{path}", PAUSE_S, 0.0
    while True:
        try:
            return await _attempt(session, address, body, config)
        except Passing as error:
            failed = failed or time.monotonic()
            waited_s = time.monotonic() - failed
            if waited_s + pause_s > patience_s:
                raise TrainerError(f"teacher {address}: {error}{_waited(waited_s)}") from None
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 1.5 * pause_s)


def _waited(seconds: float) -> str:
    return f"; repeated for {seconds:.0f} s" if seconds >= 1 else ""


async def _attempt(session: aiohttp.ClientSession, address: str, body: Any, config: Teacher) -> Any:
    method = "GET" if body is None else "POST"
    try:
        async with session.request(method, address, json=body) as response:
            text = await response.text(errors="replace")
            if response.status in PASSING:
                raise Passing(f"it answers {response.status}: {_reason(config, text)}")
            if response.status in (401, 403):
                raise TrainerError(
                    f"teacher {address}: it answers {response.status}: put the API key into the environment variable"
                    f" {config.key_variable} (trainer.teacher.key_variable)"
                )
            if response.status != 200:
                raise TrainerError(f"teacher {address}: it answers {response.status}: {_reason(config, text)}")
            return await response.json(content_type=None)
    except TimeoutError:
        raise Passing(
            f"no answer within trainer.teacher.timeout_s = {config.timeout_s:g} s (concurrency ="
            f" {config.concurrency})"
        ) from None
    except aiohttp.ClientError as error:
        raise Passing(f"{error or type(error).__name__}") from None
    except ValueError:
        raise TrainerError(f"teacher {address}: its answer is not JSON; is this an OpenAI-compatible API?") from None


def _reason(config: Teacher, text: str) -> str:
    """What a server says, in one line, without our key."""
    key = os.environ.get(config.key_variable, "")
    return truncated(" ".join((text.replace(key, "...") if key else text).split()) or "nothing", REASON_CHARS)


def read_logprobs(url: str, answer: Any, tokens: Sequence[int], count: int, topk: int) -> Scored:
    """The last `count` tokens of the prompt in an answer of /v1/completions. Raises `TrainerError`."""

    def refuse(what: str) -> TrainerError:
        return TrainerError(f"teacher {url}: {what}: a vLLM server that gives prompt_logprobs is needed")

    try:
        (choice,) = answer["choices"]
        rows, read = choice["prompt_logprobs"], choice.get("prompt_token_ids")
    except (KeyError, TypeError, ValueError):
        raise refuse("its answer has no prompt_logprobs") from None
    if rows is None or len(rows) != len(tokens) or (read is not None and list(read) != list(tokens)):
        have = "none" if rows is None else f"{len(rows)} for {len(tokens)} tokens"
        raise refuse(f"it gave other log-probs than asked for ({have})")
    scored = Scored(
        np.zeros(count, np.float32), np.full((count, topk), -1, np.int64), np.full((count, topk), -np.inf, np.float32)
    )
    for place, (row, token) in enumerate(zip(rows[len(rows) - count :], tokens[len(tokens) - count :], strict=True)):
        try:
            found = {int(id): max(float(about["logprob"]), CERTAINLY_NOT) for id, about in row.items()}
            scored.logprobs_N[place] = found[token]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise refuse(f"it gave no log-prob of token {token} (response token {place})") from None
        if not all(value <= TOLERANCE for value in found.values()):  # also NaN
            raise refuse(f"it gave {max(found.values()):g} as a log-prob (its --logprobs-mode may be raw_logits)")
        best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:topk]
        for rank, (id, value) in enumerate(best):
            scored.ids_NK[place, rank], scored.topk_NK[place, rank] = id, value
    return scored


async def served(session: aiohttp.ClientSession, config: Teacher, patience_s: float) -> Served:
    """The model that `served` names. Raises `TrainerError`."""
    answer = await ask(session, config, "models", patience_s=patience_s)
    try:
        models = {str(model["id"]): model.get("max_model_len") for model in answer["data"]}
    except (KeyError, TypeError, AttributeError):
        raise TrainerError(f"teacher {config.url}: its answer to /models lists no models") from None
    names = ", ".join(models) or "none"
    name = config.served or (next(iter(models)) if len(models) == 1 else "")
    if not name:
        raise TrainerError(f"teacher {config.url}: it serves {names}: name one of them in trainer.teacher.served")
    if name not in models:
        raise TrainerError(f"teacher {config.url}: it has no model {name!r} (trainer.teacher.served), only {names}")
    context = models[name]
    return Served(name, int(context) if isinstance(context, int | float) and math.isfinite(context) else None)
