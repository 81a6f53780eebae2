"""Which library implements an optimizer, and whether it is installed. Imports none of them."""

from __future__ import annotations

import importlib.util

from rhymed.core.config import Trainer

LIBRARY = "bitsandbytes"
NEEDS_LIBRARY = ("adamw_8bit", "paged_adamw", "paged_adamw_8bit")


def missing_packages(config: Trainer) -> list[str]:
    """Sentences that name the remedy; empty if everything is installed."""
    if config.engine != "torch" or config.optimizer not in NEEDS_LIBRARY or importlib.util.find_spec(LIBRARY):
        return []
    return [
        f"trainer.optimizer = {config.optimizer!r} needs the package {LIBRARY}, which is not installed:"
        " pip install 'rhymed[bitsandbytes]', or set trainer.optimizer = 'adamw'"
    ]
