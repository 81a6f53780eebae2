"""Takes folders of this machine out of the files of an exported model: they name the model that was trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rhymed.inputs.hub import is_identifier
from rhymed_workers.lora.about import WEIGHTS, read

KEYS = ("base_model_name_or_path", "_name_or_path", "name_or_path")


def base_name(path: str) -> str:
    """An id of the hub as it is; of a folder or a file, the last part."""
    return path if is_identifier(path) and not Path(path).expanduser().exists() else Path(path).name


def without_folders(folder: Path) -> None:
    """Changes the files in this folder."""
    for file in folder.glob("*config.json"):
        settings = json.loads(file.read_text())
        found = {key: base_name(settings[key]) for key in KEYS if isinstance(settings.get(key), str)}
        if settings != settings | found:
            file.write_text(json.dumps(settings | found, indent=2) + "\n")
    if (folder / WEIGHTS).is_file():
        _restate(folder / WEIGHTS)


def _restate(file: Path) -> None:
    """The adapter's description of itself is in the header of its file."""
    about = read(file)
    if about is None or about.base == base_name(about.base):
        return
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header["__metadata__"] |= replace(about, base=base_name(about.base)).metadata()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
