"""Shared storage by URL or mounted folder: the same operations, and errors in words."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from rhymed.core.errors import ConfigError, StorageError
from rhymed.records.remote.place import open_place
from tests.packages import needs

pytestmark = needs("fsspec")


@pytest.mark.parametrize("kind", ["folder", "file", "memory"])
def test_every_storage_has_the_same_operations(kind: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    urls = {"folder": str(shared), "file": f"file://{shared}", "memory": f"memory://{secrets.token_hex(4)}"}
    place = open_place(urls[kind]).child("one")
    assert place.names() == []
    assert place.read("a") is None
    assert place.bytes_of("a") is None
    place.write("a", b"first")
    place.write("deep/b", b"second")
    (tmp_path / "local").write_bytes(b"third")
    place.upload(tmp_path / "local", "deep/c")
    place.write("a", b"again")
    assert place.names() == ["a", "deep"]
    assert place.child("deep").names() == ["b", "c"]
    assert (place.read("a"), place.bytes_of("deep/c")) == (b"again", 5)
    place.download("deep/c", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"third"
    place.remove("a")
    place.remove("a")
    place.remove_folder("deep")
    place.remove_folder("deep")
    assert place.names() == []
    with pytest.raises(StorageError, match="one/none: FileNotFoundError"):
        place.download("none", tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        place.upload(tmp_path / "gone", "a")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense://bucket/runs", "cannot be opened: Protocol not known: nonsense"),
        ("/nowhere/mounted", "run.remote: /nowhere/mounted is no folder: is it mounted?"),
    ],
)
def test_a_place_that_cannot_be_opened_is_a_sentence(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_place(url)
    assert words in str(error.value)


@pytest.mark.parametrize(("url", "package"), [("s3://bucket/runs", "s3fs"), ("gs://bucket/runs", "gcsfs")])
def test_a_package_that_is_missing_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=package):
        open_place(url)


def test_a_full_disk_is_a_sentence_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from rhymed.core import atomic

    place = open_place(str(tmp_path))
    place.write("a", b"old")

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(StorageError, match="a: OSError: No space left on device"):
        place.write("a", b"new")
    assert place.read("a") == b"old"
    assert place.names() == ["a"]
