"""`rhymed history export`: every sample of a store as a row of a parquet or JSONL file. Also the file's schema.

The file appears whole or not at all; no more than a row group of it is ever in memory. Rows are in order of prompt,
step, index.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, StoreDamaged
from rhymed.records.history.folder import RunFolder
from rhymed_store.browse import Response
from rhymed_store.columns import epochs_of, is_trained

GROUP_ROWS = 1024
GROUP_TOKENS = 1 << 20

Write = Callable[[list[dict[str, Any]]], None]


@dataclass
class Exported:
    samples: int = 0
    prompts: int = 0
    tokens: int = 0
    damaged: list[str] = field(default_factory=list)  # of prompts that are left out, why


def arrow() -> Any:
    """pyarrow, with `pyarrow.parquet`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("parquet files need pyarrow: pip install 'rhymed[data]'; or name a .jsonl file") from None
    return pyarrow


def schema() -> Any:
    """Columns of the file. `epoch` is null for imported history (step < 0) and evaluations (step >= 2^30)."""
    pa = arrow()
    return pa.schema(
        [
            ("prompt_id", pa.string()),
            ("row", pa.string()),  # JSON; null if it was never stored
            ("epoch", pa.int32()),
            ("step", pa.int32()),
            ("index", pa.int32()),
            ("policy_version", pa.int32()),  # the oldest among its tokens; null without tokens
            ("length", pa.int32()),
            ("finish_reason", pa.string()),
            ("reward", pa.float64()),  # null: not scored
            ("parts", pa.string()),  # JSON: scorer -> its reward before its weight; null: the reward has no parts
            ("token_rewards", pa.string()),  # JSON: [token, reward] where parts of it were earned; null: at the last
            ("state", pa.string()),
            ("prompt_tokens", pa.list_(pa.uint32())),
            ("tokens", pa.list_(pa.uint32())),
            ("text", pa.string()),  # null without a tokenizer
            ("drafted", pa.list_(pa.bool_())),  # per token: was it an accepted draft; null: unknown
            ("turns", pa.list_(pa.uint32())),  # tokens in runs: the policy's, its environment's; empty: one run
            ("earned", pa.float64()),  # the reward that its environment gave; null: it gave none
            ("turn_rewards", pa.list_(pa.float64())),  # of these, of each turn of the policy; empty: not known
            ("calls", pa.string()),  # JSON: of each turn a list of name, seconds, error; null: it has no environment
            ("forks", pa.string()),  # JSON: where other rows begin: start, row, shared; null: it has one row
        ]
    )


def export(folder: RunFolder, out: Path, *, force: bool = False) -> Exported:
    """What is damaged is left out, so that the rest can be saved. Raises `ConfigError` for a name it does not know,
    or a file that is there and not `force`."""
    kinds = {".parquet": _parquet, ".jsonl": _jsonl}
    if out.suffix not in kinds:
        raise ConfigError(f"{out}: name a file that ends in {' or '.join(kinds)}")
    if out.is_dir() or (out.exists() and not force):
        raise ConfigError(f"{out} exists: name another file, or replace it with --force")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is not a folder: make it first")
    with contextlib.ExitStack() as stack:
        try:
            part = stack.enter_context(atomic.new_file(out, 0o644))
        except OSError as error:
            raise ConfigError(f"{out}: {error.strerror}") from None
        return _copy(folder, stack.enter_context(kinds[out.suffix](part)))


def _copy(folder: RunFolder, write: Write) -> Exported:
    done, group, waiting = Exported(), [], 0
    for row in _readable(folder, done):
        group.append(row)
        waiting += row["length"]
        done.samples, done.tokens = done.samples + 1, done.tokens + row["length"]
        if len(group) >= GROUP_ROWS or waiting >= GROUP_TOKENS:
            write(group)
            group, waiting = [], 0
    if group:
        write(group)
    return done


def _readable(folder: RunFolder, done: Exported) -> Iterator[dict[str, Any]]:
    for prompt in folder.browse.ids():
        try:
            found = rows(folder, prompt)
        except StoreDamaged as error:
            done.damaged.append(f"prompt {prompt}: {error}")
            continue
        done.prompts += 1
        yield from found


def rows(folder: RunFolder, prompt: str) -> list[dict[str, Any]]:
    """One prompt's samples, keys as in `schema`."""
    responses = folder.browse.responses(prompt)
    numbers = epochs_of(response.info.id.step for response in responses)
    texts = folder.decode([response.tokens for response in responses]) if folder.decode else [None] * len(responses)
    row = folder.browse.row(prompt)
    return [
        _row(response, row, numbers[response.info.id.step], text)
        for response, text in zip(responses, texts, strict=True)
    ]


def _row(response: Response, row: str | None, epoch: int, text: str | None) -> dict[str, Any]:
    info = response.info
    return {
        "prompt_id": info.id.prompt,
        "row": row,
        "epoch": epoch if is_trained(epoch) else None,
        "step": info.id.step,
        "index": info.id.index,
        "policy_version": min((version for version, _ in info.versions), default=None),
        "length": info.length,
        "finish_reason": info.finish_reason,
        "reward": info.reward,
        "parts": None if response.parts is None else json.dumps(response.parts, ensure_ascii=False),
        "token_rewards": _json(response.token_rewards) if response.token_rewards else None,
        "state": response.state,
        "prompt_tokens": response.prompt_tokens,
        "tokens": response.tokens,
        "text": text,
        "drafted": response.drafted,
        "turns": info.turns,
        "earned": info.earned,
        "turn_rewards": info.turn_rewards,
        "calls": _json(response.calls) if info.turns else None,
        "forks": _json(info.forks) if info.forks else None,
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row as JSON can have it."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}


@contextlib.contextmanager
def _parquet(file: Path) -> Iterator[Write]:
    pa = arrow()
    columns = schema()
    with pa.parquet.ParquetWriter(file, columns, compression="zstd") as writer:
        yield lambda group: writer.write_table(pa.Table.from_pylist(group, schema=columns))


@contextlib.contextmanager
def _jsonl(file: Path) -> Iterator[Write]:
    with file.open("w") as opened:

        def write(group: list[dict[str, Any]]) -> None:
            for row in group:
                opened.write(json.dumps(plain(row), ensure_ascii=False) + "\n")

        yield write
