"""Pages that are generated from the code say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from scripts.docs import algorithms, cli, config, folders, llms

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
    unlisted = yaml.safe_load(site)["not_in_nav"].split()
    assert unlisted == ["notebook.md"]
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name in unlisted or f": {page.name}\n" in site, f"{page.name}: mkdocs.yml does not lead to it"
    assert "font: false" in site
    assert "https://" not in site


def test_llms_txt_has_every_page_of_the_site_with_a_sentence() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text()) | {"docs_dir": str(ROOT / "docs")}
    first, empty, summary, *rest = llms.listing(site).splitlines()
    assert (first, empty, summary) == ("# rhymed", "", f"> {site['site_description']}")
    entries = [line for line in rest if line and not line.startswith("## ")]
    found = [re.fullmatch(r"- \[[^\]]+\]\((\w+\.md)\): \S.{20,}\.", entry) for entry in entries]
    assert all(found), entries
    named = {match[1] for match in found if match}
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")} - {"notebook.md"}


def test_a_page_is_reported_by_its_first_sentence() -> None:
    assert llms.sentence("# A\n\n<!-- b -->\n\nOf [a](b.md), e.g. c: see `d`. More.\n") == "Of a, e.g. c: see `d`."
    with pytest.raises(ValueError, match="# A: a page begins with a sentence"):
        llms.sentence("# A\n\n## B\n\nText.\n")


def headings(page: Path) -> set[str]:
    """The fragments of the page's headings that are the same on the site and where repositories are shown.

    The site makes one hyphen of several, so a heading such as `a -b` has none.
    """
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", line.lower()) for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {words.replace(" ", "-") for words in plain if words.replace(" ", "-") == re.sub(r"[-\s]+", "-", words)}


def test_every_link_between_pages_leads_to_a_file_and_a_heading() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for path, fragment in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", text):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {path}"
            assert not fragment or fragment in headings(target), f"{page.name}: {path}#{fragment}"


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
