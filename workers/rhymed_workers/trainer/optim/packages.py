"""Which library implements an optimizer, and whether it is installed. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from rhymed.core.config import Trainer

LIBRARY = "bitsandbytes"
NEEDS_LIBRARY = ("adamw_8bit", "paged_adamw", "paged_adamw_8bit")


MUON = 2, 9  # torch that has it


def _torch() -> tuple[int, ...]:
    """Its version; nothing where it is not installed, which others report."""
    try:
        return tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return MUON


def missing_packages(config: Trainer) -> list[str]:
    """Sentences that name the remedy; empty if everything is installed."""
    if config.engine == "torch" and config.optimizer == "muon" and _torch() < MUON:
        return [
            f"trainer.optimizer = 'muon' needs torch {MUON[0]}.{MUON[1]} or newer, and"
            f" {importlib.metadata.version('torch')} is installed: update it, or set trainer.optimizer = 'adamw'"
        ]
    if config.engine != "torch" or config.optimizer not in NEEDS_LIBRARY or importlib.util.find_spec(LIBRARY):
        return []
    return [
        f"trainer.optimizer = {config.optimizer!r} needs the package {LIBRARY}, which is not installed:"
        " pip install 'rhymed[bitsandbytes]', or set trainer.optimizer = 'adamw'"
    ]
