"""Writes the report of a run's folder: `report.html`, self-contained, and its pictures as files in `report/`.

An existing report is replaced atomically, so a reader never sees half of one.
"""

from __future__ import annotations

import base64
from pathlib import Path

from rhymed import atomic
from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.report import curves, page
from rhymed.report.facts import Facts, gather
from rhymed.run.folder import near
from rhymed.run.redact import redacted

NO_PICTURES = "There are no pictures: matplotlib is not installed (pip install 'rhymed[plots]')."
NO_METRICS = "There is nothing to draw: metrics.jsonl has no step."


def write(folder: Path, out: Path | None = None, *, ended: bool = False) -> Path:
    """Returns the file of the page. `out`: a folder other than the run's. Raises `ConfigError`."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} does not exist: name a run's folder, e.g. runs/quickstart{near(folder)}")
    if not any((folder / name).exists() for name in ("config.json", "metrics.jsonl", "logs", "store")):
        raise ConfigError(f"{folder} is not a run's folder: name one, e.g. runs/quickstart{near(folder)}")
    folder = folder.resolve()
    target = (out or folder).expanduser()
    try:
        (target / "report").mkdir(parents=True, exist_ok=True)
        return _write(gather(folder, ended=ended), target)
    except OSError as error:
        hint = "" if out else "; name another folder with --out"
        raise ConfigError(f"{target}: the report cannot be written there: {error.strerror or error}{hint}") from None


def _write(facts: Facts, target: Path) -> Path:
    pictures = curves.draw(facts.rows, facts.evaluations, target / "report")
    note = NO_PICTURES if pictures is None else "" if pictures else NO_METRICS
    inline = [page.Shown(_inline(one.file), one.title, one.about) for one in pictures or ()]
    facts.config = redacted(facts.config)
    text = page.page(
        facts, inline, _gantt(facts, target / "report" / "gantt.png"), Config().model_dump(mode="json"), note
    )
    file = target / "report.html"
    atomic.write(file, text.encode(errors="replace"))
    return file


def _gantt(facts: Facts, file: Path) -> page.Shown | None:
    from rhymed.report.gantt import draw

    if (picture := draw(facts.timeline, file)) is None:
        return None
    return page.Shown(
        _inline(picture),
        "One bar per worker; pale: waiting; line: step trained",
        "Activities of all workers over time",
    )


def _inline(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
