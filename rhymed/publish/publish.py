"""From a run's folder to a repository: the export, its card, and the commit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from rhymed.config.load import load_run
from rhymed.errors import ConfigError
from rhymed.publish.card import Subject, card
from rhymed.publish.private import base_name, without_folders
from rhymed.publish.push import Target, check, push
from rhymed.run import provenance
from rhymed.run.checkpoint import Checkpoint
from rhymed.run.folder import layout_of_folder, read_evaluations, read_metrics

CARD = "README.md"


def subject(run: Path, name: str, checkpoint: Checkpoint, dtype: str, *, adapter: bool) -> Subject:
    """What the run's folder records about the checkpoint. Raises `ConfigError`."""
    layout, config = layout_of_folder(run), load_run(run)
    if config.trainer.engine == "trace":
        raise ConfigError(f"{run} was trained by the trace engine: there is no model to push")
    starts = provenance.read(run)
    return Subject(
        name=name,
        step=checkpoint.step,
        dtype=dtype,
        adapter=adapter,
        base=base_name(config.model.path),
        config=config.model_dump(mode="json"),
        changed=config.model_dump(mode="json", exclude_defaults=True),
        rows=read_metrics(layout),
        evaluations=read_evaluations(layout),
        start=starts[-1] if starts else None,
        version=provenance.versions().get("rhymed", ""),
    )


def publish(about: Subject, target: Target, run: Path, export: Callable[[Path], None]) -> str:
    """Returns the address of the commit. `export` writes the model into a folder that does not exist. The copy is
    next to the checkpoints, and is removed. Raises `ConfigError`."""
    check(target)
    with tempfile.TemporaryDirectory(prefix=".push-", dir=run) as place:
        folder = Path(place) / "model"
        export(folder)
        without_folders(folder)
        (folder / CARD).write_text(card(about))
        return push(target, folder, f"{about.step} steps of {about.config['trainer']['algorithm']} with rhymed")
