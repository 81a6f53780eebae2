"""Changed files, other versions, foreign wheels and vulnerabilities are found; the audit says what it did not see."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from scripts.supply import audit, installed, vulnerable
from scripts.supply.pins import FOLDER, Pin, read


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with one package, as pip leaves it."""
    folder = tmp_path / "site"
    (folder / "one-1.0.dist-info").mkdir(parents=True)
    (folder / "one.py").write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    (folder / "one-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.4\nName: one\nVersion: 1.0\n")
    (folder / "one-1.0.dist-info/RECORD").write_text(f"one.py,sha256={digest},6\none-1.0.dist-info/RECORD,,\n")
    return folder


def test_an_untouched_environment_is_in_order(site: Path) -> None:
    there = installed.packages(site)
    assert not list(installed.changed_files(site, there))
    assert not list(installed.other_versions(there, {"one": Pin("one", "1.0")}))
    assert installed.count(there) == 1


def test_a_changed_file_a_missing_one_and_a_planted_pth_are_found(site: Path) -> None:
    (site / "one.py").write_text("x = 2\n")
    (site / "planted.pth").write_text("import os\n")
    there = installed.packages(site)
    assert list(installed.changed_files(site, there)) == [
        "one: one.py was changed after its installation",
        "planted.pth: of no package",
    ]
    (site / "one.py").unlink()
    assert "one: one.py cannot be read: No such file or directory" in installed.changed_files(site, there)
    (site / "one-1.0.dist-info/RECORD").unlink()
    assert "one: has no RECORD, so its files cannot be compared" in installed.changed_files(site, there)


def test_other_versions_than_listed_are_found(site: Path) -> None:
    wanted = {"one": Pin("one", "2.0"), "two": Pin("two", "1.0")}
    assert list(installed.other_versions(installed.packages(site), wanted)) == [
        "one: 1.0; the list has 2.0",
        "two: not installed; the list has 1.0",
    ]


def test_a_wheel_of_no_list_is_found(tmp_path: Path) -> None:
    assert not audit.wheels(tmp_path)[1]
    (tmp_path / "idna-3.20-py3-none-any.whl").write_bytes(b"something else")
    assert audit.wheels(tmp_path)[1] == ["idna-3.20-py3-none-any.whl: its SHA-256 is in no list"]


def test_the_lists_and_the_vendored_files_of_the_tree_are_in_order() -> None:
    assert not audit.lists()[1]
    assert not audit.vendored()[1]


def test_what_cannot_be_looked_at_has_a_reason_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    assert audit.attempt("secrets", audit.secrets) == 2
    assert "could not look: git lists no files" in capsys.readouterr().out
    monkeypatch.setattr(audit, "FOLDER", tmp_path)
    assert audit.attempt("lists", audit.lists) == 1
    (tmp_path / "build.txt").write_text("setuptools>=1\n")
    assert audit.attempt("lists", audit.lists) == 1
    out = capsys.readouterr().out
    assert "No such file or directory" in out
    assert "'setuptools>=1' is not NAME==VERSION" in out


KNOWN = {"id": "PYSEC-2026-1", "fix_versions": ["1.1"], "aliases": [], "description": ""}


def test_a_vulnerability_is_named_with_its_cure() -> None:
    packages = [{"name": "one", "version": "1.0", "vulns": [KNOWN]}, {"name": "two", "version": "1.0", "vulns": []}]
    answer = vulnerable.judge(json.dumps({"dependencies": packages}), "", {"one": "1.0", "two": "1.0"})
    assert answer.found == ["one 1.0: PYSEC-2026-1; mended in 1.1"]
    assert (answer.looked, answer.unknown) == (2, [])


def test_packages_that_were_not_looked_up_are_not_called_safe() -> None:
    skipped = {"dependencies": [{"name": "one", "skip_reason": "not found on PyPI"}]}
    answer = vulnerable.judge(json.dumps(skipped), "", {"one": "1.0", "two": "1.0"})
    assert (answer.looked, sorted(answer.unknown), answer.why) == (0, ["one", "two"], "not found on PyPI")
    answer = vulnerable.judge("", "Traceback …\nConnectionError: no route\n", {"one": "1.0"})
    assert (answer.unknown, answer.why) == (["one"], "ConnectionError: no route")


def test_two_versions_of_a_package_are_asked_for_one_after_the_other() -> None:
    assert vulnerable.rounds([("a", "2"), ("b", "1"), ("a", "1")]) == [{"a": "1", "b": "1"}, {"a": "2"}]


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        ("", 2, "could not look at any of 1 packages: pip-audit wrote nothing"),
        ('{"dependencies": [{"name": "one", "version": "1", "vulns": []}]}', 0, "none known of 1 packages"),
        (json.dumps({"dependencies": [{"name": "one", "version": "1", "vulns": [KNOWN]}]}), 1, "PYSEC-2026-1"),
    ],
)
def test_the_exit_code_says_whether_it_could_look(
    output: str,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setattr(audit, "read", lambda file: {"one": Pin("one", "1+cpu")})
    assert audit.vulnerabilities(program) == code
    assert words in capsys.readouterr().out
    assert audit.vulnerabilities(tmp_path / "missing") == 2


def test_the_bill_of_materials_has_every_package_with_digests_and_licence(site: Path) -> None:
    from scripts.supply.sbom import bill

    there = installed.packages(site)
    (site / "one-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.4\nName: one\nVersion: 1.0\nLicense-Expression: MIT\nRequires-Dist: torch\n"
        "Requires-Dist: absent\n"
    )
    pins = {"one": Pin("one", "1.0", ("sha256:" + "1" * 64,)), "torch": read(FOLDER / "cpu.txt")["torch"]}
    document = bill("cpu", pins, there, "2026-01-01T00:00:00Z")
    one, torch, chart = document["components"]
    assert one["licenses"] == [{"expression": "MIT"}]
    assert one["externalReferences"][0]["hashes"] == [{"alg": "SHA-256", "content": "1" * 64}]
    assert torch["purl"].startswith("pkg:pypi/torch@")
    assert torch["hashes"]
    assert chart["purl"].startswith("pkg:npm/uplot@")
    needs = {link["ref"]: link.get("dependsOn") for link in document["dependencies"]}
    assert needs["pkg:pypi/one@1.0"] == [torch["purl"]]
    assert torch["purl"] in needs[document["metadata"]["component"]["bom-ref"]]
    assert document == bill("cpu", pins, there, "2026-01-01T00:00:00Z")
