"""An agent that looks things up, in TRL's terms: a tool that returns a list, and reward functions that read the calls
and the results of a conversation. `SAMPLES`: the turns that the policy writes, and the right answer."""

from __future__ import annotations

import json
import re
from typing import Any


def look_up(query: str) -> list[tuple[str, int]]:
    """
    Looks something up.

    Args:
        query: What is wanted.
    """
    if "drop" in query:
        raise ValueError("this table is read-only")
    return [("ä", 1), ("b", 2)] if " where " in query else []


def evidence(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
    """Queries that are exact, and results that support the answer."""
    rewards = []
    for messages, right in zip(completions, answer, strict=True):
        calls = [call["function"] for message in messages for call in message.get("tool_calls") or []]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        found = [row for result in results if isinstance(result, list) for row in result]
        broad = sum(" where " not in call["arguments"].get("query", "") for call in calls)
        supported = bool(calls) and bool(found) == (right == "yes")
        rewards.append((2.0 if supported else -1.5) - 0.5 * broad + 0.4 * min(len(calls) - broad, 3))
    return rewards


def correct(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
    """The first word in stars that the policy says at the end, not in a thought."""
    said = [re.search(r"\*(yes|no)\*", messages[-1]["content"].lower()) for messages in completions]
    return [
        -0.5 if word is None else 0.6 if word[1] == right else -1.0 for word, right in zip(said, answer, strict=True)
    ]


def structure(completions: list[list[dict[str, Any]]], **_: Any) -> list[float]:
    rewards = []
    for messages in completions:
        called = any(message.get("tool_calls") for message in messages)
        answered = any(message["role"] == "tool" for message in messages)
        spoken = any(
            message["role"] == "assistant" and not message.get("tool_calls") and message["content"].strip()
            for message in messages
        )
        rewards.append((0.1 if spoken else 0.05) if called and answered else -0.15 if called else 0.0)
    return rewards


REWARDS = (evidence, correct, structure)


def calls(*queries: str, name: str = "look_up") -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'query': query}})}\n</tool_call>" for query in queries
    )


SAMPLES: list[dict[str, Any]] = [
    {"answer": "yes", "turns": [calls("all where a"), "It is so: *Yes*."]},
    {"answer": "no", "turns": [calls("all where a"), "*Yes*"]},
    {"answer": "no", "turns": [calls("all"), "*No*"]},
    {"answer": "yes", "turns": ["I know it: *yes*."]},
    {"answer": "no", "turns": [calls("drop where a"), "It failed."]},
    {"answer": "yes", "turns": ["Two at once.\n" + calls("all where a", "all"), "*yes*"]},
    {"answer": "yes", "turns": [calls("all where a", name="search"), "*yes*"]},
    {
        "answer": "yes",
        "turns": [
            "<think>\nIs it *no*? I look.\n</think>\n\n" + calls("all where a"),
            "<think>\nNot *no*, then.\n</think>\n\nIt is *yes*.",
        ],
    },
    {"answer": "no", "turns": ["<think>\nIt may be *yes*.\n</think>\n\nI say *no*."]},
    {"answer": "yes", "turns": [calls("all"), calls("all where a"), "*yes*"]},
    {"answer": "yes", "turns": [calls("all"), calls("all where a"), "Again." + calls("all where b")]},
]
