"""The tensors of a model's folder, from the headers of its safetensors files, and a digest of their content.

The digest does not depend on how the tensors are divided into files. `About` is what an adapter's file says of the
model that it belongs to. Needs no torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.core.errors import ConfigError

INDEX = "model.safetensors.index.json"
DIGEST_BYTES = 16
READERS = 4  # threads


class Entry(NamedTuple):
    """A tensor in a file."""

    file: Path
    dtype: str  # as safetensors writes it, e.g. BF16
    shape: tuple[int, ...]
    start: int  # byte in the file
    end: int


def weight_files(folder: Path) -> list[Path]:
    """Of the index, if there is one: some folders also have the weights in another layout. Raises `ConfigError`."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} cannot be read: {error!r}") from None


def entries(folder: Path) -> dict[str, Entry]:
    """By tensor name. Raises `ConfigError` that names the file that cannot be read."""
    return {name: entry for file in weight_files(folder) for name, entry in file_entries(file).items()}


def file_entries(file: Path) -> dict[str, Entry]:
    """By tensor name. Raises `ConfigError`."""
    header, start = read_header(file)
    try:
        found = {
            name: Entry(
                file, about["dtype"], tuple(about["shape"]), *(start + offset for offset in about["data_offsets"])
            )
            for name, about in header.items()
            if name != "__metadata__"
        }
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no readable safetensors file: {error!r}") from None
    size, end = file.stat().st_size, max((entry.end for entry in found.values()), default=0)
    if size < end:
        raise ConfigError(f"{file} is cut short: it has {size} bytes, by its header {end}")
    return found


def metadata(file: Path) -> Mapping[str, str]:
    """From the file's header. Raises `ConfigError`."""
    found: Mapping[str, str] = read_header(file)[0].get("__metadata__", {})
    return found


def read_header(file: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's header, and where its data begins."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > file.stat().st_size:
                raise ValueError(f"a header of {size} bytes")
            return dict(json.loads(stream.read(size))), 8 + size
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file} is no readable safetensors file: {error}") from None


def digest(folder: Path) -> str:
    """Blake2b-128 in hex over name, type, shape and bytes of every tensor.

    Blocking: reads all weights, and again only if a file's size or time of modification has changed. Raises
    `ConfigError`.
    """
    try:
        states = [(file.name, file.stat()) for file in weight_files(folder)]
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error}") from None
    return _digest(folder, tuple((name, state.st_size, state.st_mtime_ns) for name, state in states))


@functools.lru_cache(maxsize=4)
def _digest(folder: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    found = sorted(entries(folder).items())
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with ThreadPoolExecutor(READERS, "digest") as pool:
        for (name, entry), part in zip(found, pool.map(lambda item: _content(item[1]), found), strict=True):
            whole.update(json.dumps([name, entry.dtype, entry.shape, part]).encode())
    return whole.hexdigest()


def _content(entry: Entry) -> str:
    if entry.start == entry.end:
        return ""
    with (
        entry.file.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
        view[entry.start : entry.end] as content,
    ):
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


# What an adapter's file says of itself: "LoRA over model X of digest D", and which tensor each layer changes.
#
# It is in the metadata of the safetensors file, so publishing, checkpoints and exports have one format. The tensors
# have PEFT's names: `base_model.model.<layer>.lora_A.weight` of (rank, in) and `….lora_B.weight` of (out, rank).

WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
KEY = "lora"
PREFIX = "base_model.model."


@dataclass(frozen=True)
class About:
    base: str  # the model's folder or hub id, for people
    digest: str  # of the model's tensors, see `folder.digest`
    rank: int
    alpha: float
    layers: dict[str, str]  # layer -> name of its weight in the model's folder

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def metadata(self) -> dict[str, str]:
        """For the header of a safetensors file."""
        return {KEY: json.dumps(asdict(self), separators=(",", ":"))}

    def __str__(self) -> str:
        return f"LoRA of rank {self.rank} over {self.base} (digest {self.digest})"


def read_about(file: Path) -> About | None:
    """None if the file says nothing: it has whole weights, or an adapter of another program."""
    text = metadata(file).get(KEY)
    if text is None:
        return None
    try:
        return About(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file}: its description of the adapter cannot be read: {error}") from None


def names(layer: str) -> tuple[str, str]:
    """Of the tensors A and B."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def short_names(layers: Iterable[str], others: Iterable[str]) -> list[str]:
    """Names for `target_modules` of adapter_config.json: last parts (q_proj), if no other layer has one of these."""
    chosen = list(layers)
    last = {layer.rpartition(".")[2] for layer in chosen}
    return sorted(last if last.isdisjoint(other.rpartition(".")[2] for other in others) else chosen)
