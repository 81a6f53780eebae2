"""`rhymed launch`: what this machine can check of a run whose processes start on others.

Reads the rows, the model and the reward functions that are here, and names what is not. Downloads nothing, binds no
address, and looks at no memory, disk or GPU of this machine.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rhymed.check.dryrun import check_supervision, missing_packages
from rhymed.check.inputs import read
from rhymed.check.report import Report
from rhymed.config import Config, Data, Dataset
from rhymed.inputs.datasets import place, placed_rows
from rhymed.inputs.lengths import used_datasets
from rhymed.inputs.models import KNOWN, cache

ALWAYS = "memory, disk, GPUs and addresses of the other machines"


def elsewhere_check(config: Config, *, same_files: bool) -> Report:
    """`same_files`: the other machines have this one's files and packages, e.g. on shared storage. Blocking."""
    models, unread = _unread_models(config), set(_unread_rows(config, same_files=same_files))
    report = Report(errors=missing_packages(config) if same_files else [])
    with report.listening():
        if not models and not unread:
            check_supervision(config, report, read(config, report))
        else:
            _read_rows(config, report, unread, with_model=not models)
        if same_files and config.reward.workers:
            _load_scorers(config, report)
    others = [] if same_files else ["packages and reward functions"]
    report.warnings.append(f"not checked: {', '.join([*models, *sorted(unread), *others, ALWAYS])}")
    return report


def _unread_models(config: Config) -> list[str]:
    """Settings of models that are not on this machine."""
    if config.rollout.engine == config.trainer.engine == "trace":
        return []
    trainer = config.trainer
    names = {
        "model.path": config.model.path,
        "trainer.teacher.model": trainer.teacher.model if trainer.teacher.used else "",
        "trainer.critic.model": trainer.critic.model if trainer.recipe.critic else "",
    }
    return [f"{key} = {name!r}" for key, name in names.items() if name and not _is_here(name)]


def _is_here(model: str) -> bool:
    kept = (cache() / model / "config.json").is_file() if model in KNOWN else False
    return kept or Path(model).expanduser().exists()


def _unread_rows(config: Config, *, same_files: bool) -> list[str]:
    """Names of datasets that are not on this machine."""
    parts = [part for _, data in used_datasets(config) for part in _parts(data)]
    return [place(part) for part in parts if _is_elsewhere(part, same_files=same_files)]


def _is_elsewhere(data: Dataset, *, same_files: bool) -> bool:
    """A shared file that is missing here is missing there, too: that is an error."""
    if data.source == "reasoning_gym":
        return not same_files and importlib.util.find_spec("reasoning_gym") is None
    return (data.source == "hub" or not same_files) and not Path(data.path).expanduser().exists()


def _parts(data: Dataset) -> list[Dataset]:
    return list(data.parts) if isinstance(data, Data) else [data]


def _read_rows(config: Config, report: Report, unread: set[str], *, with_model: bool) -> None:
    """Of the datasets that are here. `overlong = "drop"` counts tokens, so it needs the model."""
    for _, data in used_datasets(config):
        parts = _parts(data)
        drops = any(part.overlong == "drop" for part in parts)
        if (with_model or not drops) and not unread.intersection(map(place, parts)):
            report.attempt(lambda data=data: placed_rows(config, data))  # type: ignore[misc]


def _load_scorers(config: Config, report: Report) -> None:
    from rhymed_workers.reward.preview import Loading

    with Loading(config) as scorers:
        report.attempt(scorers.loaded)
