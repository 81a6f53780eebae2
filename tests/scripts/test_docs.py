"""Pages that are generated from the code say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.docs import algorithms, cli, config, folders

ROOT = Path(__file__).parents[2]


def test_the_list_of_folders_is_current() -> None:
    assert (ROOT / "docs" / "architecture.md").read_text() == folders.page(), "run `make docs`"


def test_the_table_of_algorithms_is_current() -> None:
    assert (ROOT / "docs" / "algorithms.md").read_text() == algorithms.page(), "run `make docs`"


def test_every_setting_is_in_the_reference() -> None:
    assert (ROOT / "docs" / "config.md").read_text() == config.page(), "run `make docs`"


def test_every_command_is_in_the_reference() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == cli.page(), "run `make docs`"


def test_every_page_is_in_the_navigation_and_nothing_is_loaded_from_elsewhere() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in site, f"{page.name}: mkdocs.yml does not lead to it"
    assert "font: false" in site
    assert "https://" not in site


def test_no_page_has_the_marks_of_a_conflict() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "Makefile"):
        lines = page.read_text().splitlines()
        assert not [line for line in lines if line.startswith(("<<<<<<< ", ">>>>>>> "))], page


def test_every_stress_is_listed_for_who_contributes() -> None:
    names = re.findall(r"^stress-([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (row,) = re.findall(r"`make stress-…` \| (.*?):", (ROOT / "CONTRIBUTING.md").read_text())
    assert row.split(", ") == names


def test_the_readme_shows_the_smallest_command_on_its_first_screen() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert any("make quickstart" in line for line in lines[:35])
