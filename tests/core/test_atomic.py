from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rhymed.core import atomic


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_next_to_it(tmp_path: Path) -> None:
    target = tmp_path / "file.json"
    atomic.write(target, "old")
    atomic.write(target, b"new", mode=0o600, synced=True)
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(UnicodeEncodeError), atomic.new_file(target) as part:
        part.write_text("a half \ud800", encoding="utf-8")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


def test_a_mode_that_is_named_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic.write(tmp_path / "named", "", mode=0o644)
        atomic.write(tmp_path / "usual", "")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("named", "usual")] == [0o644, 0o600]


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with atomic.new_folder(tmp_path / "made") as part:
        (part / "one").write_text("1")
        atomic.sync_folder(part)
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "made" / "one").read_text() == "1"
    with pytest.raises(OSError, match="not empty"), atomic.new_folder(tmp_path / "made"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_every_folder_that_is_made_has_a_durable_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic, "sync", synced.append)
    atomic.make_folder(tmp_path / "one" / "two")
    assert (tmp_path / "one" / "two").is_dir()
    assert sorted(synced) == [tmp_path, tmp_path / "one"]
    atomic.make_folder(tmp_path / "one" / "two")
    assert len(synced) == 2


def test_a_synced_file_has_a_durable_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic, "sync", synced.append)
    atomic.write(tmp_path / "file", "new", synced=True)
    assert synced[-1] == tmp_path, "after the rename"
