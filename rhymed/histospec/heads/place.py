"""Where a run's head is."""

from __future__ import annotations

from pathlib import Path

from rhymed.core.config import Config

FILE = "head.safetensors"  # in the run's folder


def head_file(config: Config, folder: Path) -> Path:
    """`drafts.head`, else a file in the run's folder, which may not be there yet."""
    return Path(config.drafts.head).expanduser().absolute() if config.drafts.head else folder / FILE
