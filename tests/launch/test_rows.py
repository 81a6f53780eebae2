"""Prompts that are too long with what tools add to them are left out, for a broker that runs no code of users."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.errors import DataError
from rhymed.inputs.lengths import check_prompts
from rhymed.inputs.prepared import rows_of
from rhymed.launch.rows import keep, lengths_of
from rhymed_workers.environment.lengths import prompt_lengths
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
    (plain,), (whole,) = check_prompts(config), check_prompts(config, prompt_lengths(config))
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
