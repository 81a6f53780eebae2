"""Which store has a prompt. Pure.

A prompt's id is a hash, so equal ranges of ids hold about equally many prompts. With ranges, what is ordered by
prompt within each store is ordered when the stores are read one after another.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhymed_store.codec.records import prompt_key


def shard_of(prompt: str, shards: int) -> int:
    """Raises `MalformedMessage` for what is no prompt's id."""
    return int.from_bytes(prompt_key(prompt)[:4], "big") * shards >> 32


def positions_by_shard(prompts: Sequence[str], shards: int) -> dict[int, list[int]]:
    """Store -> the positions of its prompts in the list, ascending."""
    found: dict[int, list[int]] = {}
    for position, prompt in enumerate(prompts):
        found.setdefault(shard_of(prompt, shards), []).append(position)
    return found
