"""Programs with a policy that answers from a table: a real store, real processes, and a policy of a few lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rhymed.core.config import Config
from rhymed.core.messages import SampleId, SampleInfo, Turn
from rhymed.inputs.rows import prompt_id
from rhymed_store.client import StoreClient, StoredSample
from rhymed_store.sessions import NewTurn, get_session, put_turns
from rhymed_workers.sessions.programs import Programs

ROW: dict[str, Any] = {"prompt": "What is 1 + 2?", "answer": 3}
ID = SampleId(0, prompt_id(ROW), 0)
CLIENT = """
import json, os, sys
from openai import OpenAI
client = OpenAI(max_retries=0)
row = json.loads(os.environ["RHYMED_ROW"])
def ask(messages, **more):
    return client.chat.completions.create(model="any", messages=messages, **more)
def say(text):
    return {"role": "user", "content": text}
"""

BARE = """
import json, os, sys, urllib.request
def ask(messages):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    body = json.dumps({"model": "any", "messages": messages}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))
def say(text):
    return {"role": "user", "content": text}
"""
"""Without OpenAI's package, whose import takes a second."""

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<eos>\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)

Policy = Callable[[list[int], int], list[int]]
"""(the tokens before the turn, earlier turns with the same ones) -> its tokens."""


def echo(prompt: list[int], repeats: int) -> list[int]:
    """Different for every prompt, and every time that it is asked."""
    return [1000 + len(prompt), sum(prompt) % 1000, 2000 + repeats]


def config_of(
    folder: Path, program: str, model: Path | None = None, client: str = CLIENT, **environment: Any
) -> Config:
    """With a program that has `client` before its code. `model`: whose tokenizer is used; None: bytes are tokens."""
    file = folder / "agent.py"
    file.write_text(client + program)
    (folder / "chat.jinja").write_text(TEMPLATE)
    real = {"model": {"path": str(model), "chat_template": str(folder / "chat.jinja")}} if model else {}
    return Config.model_validate(
        {
            "run": {"folder": str(folder)},
            **real,
            "rollout": {
                "engine": "vllm" if model else "trace",
                "max_prompt_length": 200 if model else 800,
                "max_response_length": 312 if model else 800,
            },
            "store": {"map_gib": 0.1},
            "environment": {"command": f"{sys.executable} {file}", **environment},
        }
    )


class Loop:
    """The rest of a run: the broker and the rollout worker."""

    def __init__(self, store: StoreClient, policy: Policy = echo) -> None:
        self.store, self.policy = store, policy
        self.prompts: list[list[int]] = []

    async def finish(self, programs: Programs, id: SampleId = ID, turns: int = 1000) -> SampleInfo | None:
        """Until the sample is complete, or this many turns are written."""
        for _ in range(turns):
            if info := await programs.act(id):
                return info
            await self.write(id)
        return None

    async def write(self, id: SampleId = ID) -> None:
        stored = await get_session(self.store, id)
        number = len(stored.turns)
        prompt = stored.before(number).tolist()
        self.prompts.append(prompt)
        tokens = self.policy(prompt, stored.repeats(number))
        most = stored.session.answers[number].most
        tokens, cut = tokens[:most], most is not None and len(tokens) > most
        turn = Turn(length=len(tokens), finish_reason="length" if cut else "stop", versions=[(0, len(tokens))])
        logprobs = -np.arange(1, len(tokens) + 1, dtype=np.float32)
        await put_turns(self.store, [NewTurn(id, number, turn, np.array(tokens, np.uint32), logprobs)])

    async def sample(self, id: SampleId = ID) -> StoredSample:
        (found,) = await self.store.get_samples([id], logprobs=True, prompt_tokens=True)
        return found


async def finished(
    config: Config, store: StoreClient, policy: Policy = echo, ids: Sequence[SampleId] = (ID,)
) -> list[StoredSample]:
    """These samples, from their beginning to their end."""
    loop = Loop(store, policy)
    async with Programs(config, store) as programs:
        await asyncio.gather(*(loop.finish(programs, id) for id in ids))
    return [await loop.sample(id) for id in ids]
