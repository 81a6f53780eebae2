"""What must hold before a run with a teacher starts: it is there, has the policy's tokenizer, and room for samples.

Needs no torch: `rhymed check`, the start of `rhymed run` and the trainer's own start ask the same. Blocking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, TrainerError
from rhymed.inputs.models import context_of, resolve_model, resolve_second
from rhymed.inputs.render import load_tokenizer
from rhymed_workers.trainer.teacher.remote import Served, ask, served, session_of

PROBE = "Two words: naïve 东京 Ωmega, 1234567 + 0.5e-3 == x[i]\n\n\treturn {'a': None}  # 🙂 don't"
"""Text that tokenizers of different families cut differently."""

START_PATIENCE_S = 5.0  # for a server at the start: it should be up already


@dataclass(frozen=True)
class Found:
    """The teacher that a run will use."""

    folder: Path | None = None  # a local teacher's
    server: Served | None = None
    context: int | None = None  # tokens; None: unknown


def find_teacher(config: Config, patience_s: float | None = None) -> Found:
    """Raises `ConfigError` for a teacher that is missing or does not fit, `TrainerError` for a server that fails.

    `patience_s`: for a server that fails at first; None: it should be up already.
    """
    teacher = config.trainer.teacher
    if teacher.url:
        return asyncio.run(_server(config, START_PATIENCE_S if patience_s is None else patience_s))
    if not teacher.model:
        folder = resolve_model(config)
        return Found(folder, context=context_of(folder))
    folder, mine, other = resolve_second(config, "trainer.teacher.model", teacher.model, teacher.revision)
    if teacher.tokens == "vocabulary" and (other.size or 0) < (mine.size or 0):
        raise ConfigError(
            f"trainer.teacher.model = {teacher.model!r} has {other.size} token ids, model.path ="
            f" {config.model.path!r} has {mine.size}: an exact divergence needs all of them; set"
            " trainer.teacher.over = 'sampled' with divergence = 'reverse'"
        )
    return Found(folder, context=context_of(folder))


async def _server(config: Config, patience_s: float) -> Found:
    async with session_of(config.trainer.teacher) as session:
        server = await served(session, config.trainer.teacher, patience_s)
        await _compare_tokenizers(session, config, server.name, patience_s)
    return Found(server=server, context=server.context)


async def _compare_tokenizers(session: aiohttp.ClientSession, config: Config, name: str, patience_s: float) -> None:
    """The server cuts `PROBE` and the policy's special tokens into the same ids as the policy's tokenizer."""
    url = config.trainer.teacher.url
    tokenizer = await asyncio.to_thread(lambda: load_tokenizer(config.model, resolve_model(config)))
    text = PROBE + "".join(tokenizer.all_special_tokens)
    mine: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    body = {"model": name, "prompt": text, "add_special_tokens": False, "max_tokens": 1, "prompt_logprobs": 0}
    answer = await ask(session, config.trainer.teacher, "completions", body, patience_s)
    theirs = _ids(url, answer)
    if theirs != mine[1:]:
        raise ConfigError(
            f"trainer.teacher.url = {url!r}: {name} has another tokenizer than model.path = {config.model.path!r}:"
            " its log-probs would be of other tokens; serve a teacher of the same model family"
        )


def _ids(url: str, answer: Any) -> Sequence[int]:
    """Token ids of the prompt, from the second on: the first has no log-prob."""
    try:
        rows = answer["choices"][0]["prompt_logprobs"]
        return [int(next(iter(row))) for row in rows[1:]]
    except (KeyError, IndexError, TypeError, ValueError, StopIteration):
        raise TrainerError(
            f"teacher {url}: its answer has no prompt_logprobs: a vLLM server that gives them is needed"
        ) from None
