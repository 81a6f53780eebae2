"""Files that were edited since a run was started."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import RunMismatch
from rhymed.core.run import edited, provenance
from rhymed.core.run.layout import INPUTS

NAMES = ("reward.py", "tools.py", "chat.jinja", "rows.jsonl")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        Path(name).write_text(name)
    return Config.model_validate({
        "data": {"path": "rows.jsonl"},
        "model": {"chat_template": "chat.jinja"},
        "environment": {"tools": "tools.py:a"},
        "reward": {"scorer": "reward.py:a"},
    })  # fmt: skip


def begin(config: Config, *, prepared: bool = False) -> Path:
    folder = Path("run")
    folder.mkdir(exist_ok=True)
    edited.start(folder, provenance.now([], config, prepared=prepared))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_edited_is_named_with_its_old_content(config: Config, name: str) -> None:
    folder = begin(config)
    assert edited.difference(folder, config) == ""
    assert edited.accepted(folder, config) == []
    Path(name).write_text("other")
    (one,) = edited.files(folder, config)
    assert one.path == name
    assert one.copy is not None
    assert one.copy.read_text() == name
    why = edited.difference(folder, config, one.setting)
    assert f"{name} ({one.setting}) was edited" in why
    assert f"cp {one.copy} {name}" in why
    assert edited.difference(folder, config, "another setting") == ""
    begin(config, prepared=True)
    assert edited.difference(folder, config) == why, "`rhymed prepare` starts nothing"
    begin(config)
    assert edited.difference(folder, config) == "", "the resume took it"
    Path(name).write_text(name)
    assert edited.difference(folder, config), "and the old content is now the other one"


def test_a_resume_takes_code_that_was_edited_and_no_other_template(config: Config) -> None:
    folder = begin(config)
    Path("tools.py").write_text("other")
    (said,) = edited.accepted(folder, config)
    assert said.startswith("tools.py (environment) was edited after the run was started: its new content counts;")
    Path("rows.jsonl").write_text("compared by their rows")
    assert len(edited.accepted(folder, config)) == 1
    Path("chat.jinja").write_text("other")
    with pytest.raises(
        RunMismatch, match=r"the content of chat\.jinja .* is not what it was; put the old content back"
    ):
        edited.accepted(folder, config)


def test_nothing_is_compared_without_a_start_or_a_file(config: Config) -> None:
    assert edited.difference(Path("run"), config) == ""
    folder = begin(config, prepared=True)
    Path("reward.py").write_text("other")
    assert edited.difference(folder, config) == ""
    begin(config)
    Path("reward.py").unlink()
    assert edited.difference(folder, config) == "", "who reads it says that it is gone"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_copy_may_be_read_by_no_more_than_the_original(config: Config, mode: int) -> None:
    Path("reward.py").chmod(mode)
    copies = list((begin(config) / INPUTS).iterdir())
    (copy,) = (one for one in copies if one.name.endswith("-reward.py"))
    assert stat.S_IMODE(copy.stat().st_mode) == mode | stat.S_IWUSR, "its owner can remove and replace it"
    assert len(copies) == len(NAMES)
