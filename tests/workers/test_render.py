from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.errors import ConfigError, DataError
from rhymed_workers.render import PromptCache, messages, trace_renderer

P = "0123456789abcdef"


def config(limit: int = 512, engine: str = "vllm", **data: Any) -> Config:
    return Config.model_validate({"data": data, "rollout": {"engine": engine, "max_prompt_length": limit}})


def test_text_becomes_a_user_message_with_system_and_template() -> None:
    settings = config(system="Be brief.", template="Q: {prompt} ({level})")
    assert messages(settings, P, {"prompt": "2+2 {x}?", "level": 1}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 2+2 {x}? (1)"},
    ]


def test_a_chat_keeps_its_own_system_message() -> None:
    chat = [{"role": "system", "content": "Own."}, {"role": "user", "content": "hi"}]
    assert messages(config(system="Be brief.", template="<{prompt}>"), P, {"prompt": chat}) == [
        {"role": "system", "content": "Own."},
        {"role": "user", "content": "<hi>"},
    ]
    assert chat[1]["content"] == "hi"


@pytest.mark.parametrize("prompt", [None, 3, [], ["hi"], [{"role": "user"}]])
def test_what_is_no_prompt_is_refused_by_name(prompt: Any) -> None:
    with pytest.raises(DataError, match=f"prompt {P}: column `prompt` must be"):
        messages(config(), P, {"prompt": prompt})


def test_a_template_with_an_unknown_column_or_a_bad_brace() -> None:
    with pytest.raises(DataError, match=r"names the column 'levle', the row has level, prompt"):
        messages(config(template="{levle}"), P, {"prompt": "hi", "level": 1})
    with pytest.raises(ConfigError, match="literal brace twice"):
        messages(config(template="{prompt"), P, {"prompt": "hi"})


def test_too_long_a_prompt_tells_both_lengths() -> None:
    render = trace_renderer(config(limit=4, engine="trace"))
    assert render(P, {"prompt": "hihi"}) == list(b"hihi")
    with pytest.raises(DataError, match=f"prompt {P} has 5 tokens, rollout.max_prompt_length is 4"):
        render(P, {"prompt": "hello"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_tokenizers_chat_template_is_used_when_there_is_one(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from rhymed_workers.render import Renderer

    settings = config(system="S")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    plain = Renderer(settings, tiny_model)(P, {"prompt": "hello"})
    assert tokenizer.decode(plain) == "S\n\nhello"
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path)
    chat = Renderer(settings, tmp_path)(P, {"prompt": "hello"})
    assert tokenizer.decode(chat) == "[system]S[user]hello>"


async def test_siblings_fetch_and_render_once_and_errors_are_not_remembered() -> None:
    asked: list[str] = []

    async def fetch(prompts: Sequence[str]) -> list[dict[str, Any]]:
        asked.extend(prompts)
        await asyncio.sleep(0)
        return [{"prompt": "hi" if len(asked) > 1 else 7} for _ in prompts]

    cache = PromptCache(fetch, trace_renderer(config(engine="trace")))
    with pytest.raises(DataError):
        await cache.tokens(P)
    assert await asyncio.gather(*(cache.tokens(P) for _ in range(8))) == [list(b"hi")] * 8
    assert asked == [P, P]
    cache.close()
