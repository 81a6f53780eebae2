"""Prompts that are too long with what tools add to them are left out, for a broker that runs no code of users."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import DataError, RunMismatch
from rhymed.core.run import edited, provenance
from rhymed.inputs.lengths import check_prompts
from rhymed.inputs.prepared import kept_rows, rows_of
from rhymed.start.launch.rows import compare, keep, lengths_of
from rhymed_workers.environment.preview import prompt_lengths
from tests.workers.sessions.test_dialogue import CHATML, KNOWS_TOOLS

TOOLS = '''
def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: First.
        b: Second.
    """
    return a + b
'''
PROMPTS = ["short", "x" * 400, "long " * 40]


@pytest.fixture(params=[CHATML, KNOWS_TOOLS], ids=["template without tools", "with"])
def config(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Config:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    shape = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(shape))
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "template.jinja").write_text(request.param)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    tree: dict[str, Any] = {
        "model": {"path": str(folder), "chat_template": str(tmp_path / "template.jinja")},
        "data": {"source": "jsonl", "path": str(tmp_path / "rows.jsonl"), "overlong": "drop"},
        "environment": {"tools": f"{tmp_path / 'tools.py'}:add"},
        "rollout": {"prompts_per_step": 1, "max_prompt_length": 4096},
    }
    return Config.model_validate(tree)


def limited(config: Config, limit: int, **data: Any) -> Config:
    tree = config.model_dump()
    tree["rollout"]["max_prompt_length"] = limit
    return Config.model_validate(tree | {"data": tree["data"] | data})


def test_what_tools_add_is_counted(config: Config, tmp_path: Path) -> None:
    level = logging.getLogger("asyncio").level
    (plain,), (whole,) = check_prompts(config), check_prompts(config, prompt_lengths(config))
    assert logging.getLogger("asyncio").level == level, "the run's own warnings are logged"
    added = [long - short for long, short in zip(whole.lengths, plain.lengths, strict=True)]
    assert min(added) > 50
    assert max(added) - min(added) < 8  # words may be cut otherwise where texts meet
    made = limited(config, sorted(whole.lengths)[1])
    assert len(rows_of(made, tmp_path, made.data)) == 3  # without counting what tools add
    keep(made, tmp_path)
    longest = PROMPTS[whole.lengths.index(max(whole.lengths))]
    assert [row["prompt"] for row in rows_of(made, tmp_path, made.data)] == [one for one in PROMPTS if one != longest]
    (tmp_path / "tools.py").unlink()
    keep(made, tmp_path)  # a resumed run has the same rows, without its tools


def test_nothing_is_loaded_where_no_prompt_is_left_out(config: Config, tmp_path: Path) -> None:
    made = limited(config, 4096, overlong="error")
    assert lengths_of(made, made.data.parts) is None
    keep(made, tmp_path)
    assert not (tmp_path / "rows").exists()


def test_prompts_that_are_too_long_with_tools_are_an_error(config: Config) -> None:
    (plain,) = check_prompts(config)
    made = limited(config, max(plain.lengths) + 10, overlong="error")
    check_prompts(made)
    with pytest.raises(DataError, match=r"more than\s+rollout\.max_prompt_length"):
        check_prompts(made, prompt_lengths(made))


def test_a_run_keeps_the_rows_that_it_began_with(tmp_path: Path) -> None:
    file, folder = tmp_path / "rows.jsonl", tmp_path / "run"
    folder.mkdir()
    rollout = {"engine": "trace", "prompts_per_step": 1}
    config = Config.model_validate({"data": {"path": str(file)}, "rollout": rollout})

    def write(*prompts: str, end: str = "\n") -> None:
        file.write_text("".join(json.dumps({"prompt": prompt}) + end for prompt in prompts))

    write("a", "b")
    edited.start(folder, provenance.now([], config))
    rows = kept_rows(config, folder, config.data)
    write("a", "b", end="\n\n")
    assert kept_rows(config, folder, config.data) == rows, "the same rows in another file"
    compare(config, folder)
    (digest,) = (folder / "rows").iterdir()
    written = digest.read_text()
    digest.write_text("")  # as a power failure may leave a file that was not flushed
    assert kept_rows(config, folder, config.data) == rows
    assert digest.read_text() == written
    for others in (("b", "a"), ("a", "c"), ("a", "b", "c")):
        write(*others)
        said = rf"{file}' has other rows than it began with \({len(others)} rows now, 2 then\)"
        with pytest.raises(RunMismatch, match=said):  # a broker that is started again
            kept_rows(config, folder, config.data)
        with pytest.raises(RunMismatch, match=said):  # a resume
            compare(config, folder)
