"""The sizes of the house: what is too large is named with its number, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import sizes


@pytest.fixture
def house(tmp_path: Path) -> Path:
    (tmp_path / "rhymed" / "room").mkdir(parents=True)
    return tmp_path


def named(house: Path) -> list[str]:
    return list(sizes.too_large(sizes.sources(house), house))


def test_a_file_and_a_function_that_are_too_long_are_named(house: Path) -> None:
    (house / "rhymed" / "long.py").write_text("\n" * 301)
    (house / "rhymed" / "deep.py").write_text("def f():\n" + "    pass\n" * 46)
    assert named(house) == [
        "rhymed/deep.py:1: f has 47 lines, at most 46",
        "rhymed/long.py: 301 lines, at most 300",
    ]


def test_a_crowded_folder_is_named(house: Path) -> None:
    for number in range(13):
        (house / "rhymed" / "room" / f"file{number}.js").write_text("")
    (house / "rhymed" / "room" / "__init__.py").write_text("")
    assert named(house) == ["rhymed/room/: 13 files, at most 12"]


def test_a_folder_that_is_too_deep_is_named(house: Path) -> None:
    deep = house / "rhymed" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file.py").write_text("")
    assert named(house) == ["rhymed/a/b/c/file.py: 3 folders below its package, at most 2"]
