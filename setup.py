"""The packages of the distribution, and the README as a package index shows it. All else is in pyproject.toml.

An index has no files of the repository: there, a link to one becomes its path behind the words, and pictures are left
out. Links to the web stay.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

LINK = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?!https?:|#)(?P<target>[^)\s]+)\)")


PLACES = (".", "broker", "store", "workers")  # each holds one top package
FILES = ("rhymed.shipped.configs", "rhymed.shipped.examples", "rhymed.shipped.requirements")


def packages() -> list[str]:
    """All that is imported, and the folders of files that are installed next to it."""
    root = Path(__file__).parent
    found = [name for place in PLACES for name in find_packages(str(root / place), include=["rhymed*"])]
    return [*found, *FILES]


def index_readme(text: str) -> str:
    """The same Markdown without relative links and pictures."""

    def plain(link: re.Match[str]) -> str:
        path = link["target"].partition("#")[0]
        words = "" if link["words"] == path else f"{link['words']} "
        return "" if link["picture"] else f"{words}(`{path}`)" if words else f"`{path}`"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(plain, text))


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(packages=packages(), long_description=index_readme(readme), long_description_content_type="text/markdown")
