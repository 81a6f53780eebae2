"""The files of the page, without a browser: no markup is made of text, nothing is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.show.dashboard.routes import SCRIPT, STATIC, TYPES, page

ROOT = Path(__file__).parents[3]
OWN = [file for file in STATIC.rglob("*") if "vendor" not in file.parts and file.suffix in (".js", ".html", ".css")]
DANGEROUS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "http:",
    "https:",
)


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_text_never_becomes_markup_and_nothing_comes_from_elsewhere(file):
    text = re.sub(r"^\s*(//|/\*\*).*$", "", file.read_text(), flags=re.MULTILINE)
    assert [word for word in DANGEROUS if word in text] == []
    assert len(text.splitlines()) < 300


def test_the_page_has_no_inline_script_or_style():
    html = page().text
    assert re.findall(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", html) == []


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_everything_that_is_named_is_there_and_is_served(file):
    named = re.findall(r"""(?:from|import) "(\.\.?/[^"]+)"|(?:src|href)="static/([^"]+)\"""", file.read_text())
    for imported, linked in named:
        if linked == "$script":
            assert (STATIC / SCRIPT).is_file()
            continue
        target = file.parent / imported if imported else STATIC / linked
        assert target.is_file()
        assert target.suffix in TYPES


def test_the_chart_library_is_the_one_that_version_names():
    subprocess.run([sys.executable, ROOT / "scripts" / "vendor.py", "--check"], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_names_that_are_imported_are_exported_there(file):
    for names, path in re.findall(r"""import \{([^}]*)\} from "(\.\.?/[^"]+)";""", file.read_text()):
        exported = re.findall(
            r"^export (?:async )?(?:function|class|const|let) (\w+)", text := (file.parent / path).read_text(), re.M
        )
        exported += re.split(r"[\s,]+", "".join(re.findall(r"^export \{([^}]*)\}", text, re.M)))
        assert {name.split(" as ")[0].strip() for name in names.split(",") if name.strip()} <= set(exported), path
