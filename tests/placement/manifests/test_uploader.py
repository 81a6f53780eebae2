"""A run with a copy on shared storage has one uploader, wherever it runs, next to the store and the run's folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.placement import slurm
from rhymed.placement.plan import commands, uploader

COPIED = Config(run={"name": "mine", "remote": "s3://bucket/runs"})


def here() -> list[str]:
    return list(commands(COPIED, Path("config.json"))[-1].argv[3:])


def slurm_job() -> list[str]:
    options = slurm.Options(Path("/shared/x"), Path("/"))
    texts = slurm.scripts(COPIED, options)
    (line,) = re.findall(r"^uploader\(\) \{\n  exec rhymed (.*)\n\}$", texts["head.sbatch"], re.MULTILINE)
    assert not any("upload" in text for name, text in texts.items() if name != "head.sbatch")
    return shlex.split(line)


@pytest.mark.parametrize("engine", [here, slurm_job])
def test_an_engine_starts_the_uploader_of_the_plan(engine: Any) -> None:
    *words, file = engine()
    assert Path(file).name == "config.json"
    assert [word for word in words if word not in ("--take-over", "--stay")] == uploader(COPIED, "")[1:-1]  # type: ignore[index]


def test_without_a_copy_there_is_none() -> None:
    assert uploader(Config(), "c.json") is None
    assert "uploader()" not in "".join(slurm.scripts(Config(), slurm.Options(Path("/x"), Path("/"))).values())
