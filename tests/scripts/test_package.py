"""What the package says of itself: its metadata, and the README on a package index."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

import rhymed
from scripts.supply.pins import FOLDER, read

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """The module setup.py, without the build."""
    spec = importlib.util.spec_from_file_location("rhymed_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """The fragments of the page's headings, as web pages of Markdown name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_every_link_and_picture_of_the_readme_leads_somewhere() -> None:
    links = [target for _, _, target in LINK.findall(README)]
    assert len(links) > 30
    for target in links:
        path, _, fragment = target.partition("#")
        assert not urlsplit(target).scheme, f"{target}: an address outside of the repository cannot be checked"
        assert (ROOT / path).exists(), target
        assert not fragment or fragment in anchors(ROOT / path), target


def test_the_readme_on_an_index_has_no_dead_link_and_no_dead_picture(setup: ModuleType) -> None:
    page = setup.index_readme(README)
    assert not LINK.findall(page)
    assert "(`docs/install.md`)" in page
    for heading in re.findall(r"^## .+$", README, re.MULTILINE):
        assert heading in page


def test_links_to_the_web_stay_and_paths_are_not_doubled(setup: ModuleType) -> None:
    text = "[a](docs/a.md#x) [b](https://b.example) [c](#c) [LICENSE](LICENSE)\n\n![p](p.png)\n\nend"
    expected = "a (`docs/a.md`) [b](https://b.example) [c](#c) `LICENSE`\n\nend"
    assert setup.index_readme(text) == expected


def test_the_readme_has_the_headings_that_people_look_for() -> None:
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)
    wanted = ["Why another trainer?", "Status", "Install", "Numbers", "Documentation", "Contributing"]
    assert [heading for heading in headings if heading in wanted] == wanted
    assert headings[-1] == "License"


def test_the_licence_is_apaches_text_and_the_version_is_the_same_everywhere() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    citation = (ROOT / "CITATION.cff").read_text()
    assert PROJECT["version"] == rhymed.__version__
    assert f"\nversion: {rhymed.__version__}\n" in citation
    assert f"The first release, {rhymed.__version__}." in README
    assert f"\n## {rhymed.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["license"].startswith("Apache-2.0")


def test_every_top_level_package_is_marked_as_typed() -> None:
    for top in ("rhymed", "broker/rhymed_broker", "store/rhymed_store", "workers/rhymed_workers"):
        assert (ROOT / top / "py.typed").is_file()


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_the_versions_that_an_extra_names_are_those_of_the_tests(name: str) -> None:
    pinned = read(FOLDER / f"{name}.txt")
    exact = [line for line in PROJECT["optional-dependencies"][name] if "==" in line]
    assert exact
    for line in exact:
        package, _, version = line.partition("==")
        assert pinned[package].version.partition("+")[0] == version
