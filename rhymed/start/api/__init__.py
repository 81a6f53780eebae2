"""`rhymed.train`, `rhymed.open_run` and what they return: the commands, for scripts and notebooks."""

from rhymed.start.api.run import Run, open_run, train

__all__ = ["Run", "open_run", "train"]
