from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rhymed.core.errors import WireError
from rhymed_workers.weights.copies import PREFIX, HostCopies

ADDRESS = "tcp://10.0.0.1:5552"


def opened(base: Path, address: str = ADDRESS) -> HostCopies:
    return HostCopies(address, 100, base)


def made(copies: HostCopies, name: str) -> Path:
    assert copies.begin()
    part = copies.part(name, 100)
    part.write_bytes(name.encode())
    path = copies.finish(part)
    copies.end()
    return path


def test_one_worker_makes_a_copy_and_the_other_finds_it(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    assert one.find("v1") is None
    assert one.begin()
    assert not other.begin(), "one at a time"
    part = one.part("v1", 100)
    assert other.find("v1") is None, "an unfinished file is no copy"
    part.write_bytes(b"1")
    path = one.finish(part)
    one.end()
    assert other.find("v1") == path
    assert other.begin()
    other.end()
    one.close()
    assert path.exists(), "the other reads it"
    other.close()
    assert not list(tmp_path.iterdir()), "the last one cleans up"


def test_a_copy_that_was_just_finished_is_not_removed_as_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker looks for unread copies at the moment when the copy gets its name."""
    one, other = opened(tmp_path), opened(tmp_path)
    rename = Path.rename

    def renamed(part: Path, target: Path) -> Path:
        path = rename(part, target)
        other.keep_only(None)
        return path

    monkeypatch.setattr(Path, "rename", renamed)
    assert made(one, "v1").read_bytes() == b"v1"
    one.close()
    other.close()


def test_a_copy_stays_for_as_long_as_somebody_reads_it(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    first = made(one, "v1")
    assert other.find("v1") == first
    second = made(one, "v2")
    one.keep_only(second)
    assert first.exists()
    assert other.find("v2") == second
    other.keep_only(second)
    assert not first.exists()
    one.close()
    other.close()


CHILD = """
import sys, time
from pathlib import Path
from rhymed_workers.weights.copies import HostCopies
copies = HostCopies(sys.argv[2], 100, Path(sys.argv[1]))
path = copies.part("v0", 100)
assert copies.begin()
path.write_bytes(b"0")
copies.finish(path)
copies.part("v1", 100).write_bytes(b"half")
print("here", flush=True)
time.sleep(600)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A process that reads one copy and makes another; killed when it is called."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), ADDRESS], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"here\n"

    def kill() -> None:
        child.kill()
        child.wait()

    yield kill
    kill()
    child.stdout.close()


def test_what_a_killed_worker_held_is_free(tmp_path: Path, killed: Callable[[], None]) -> None:
    copies = opened(tmp_path)
    assert not copies.begin()
    seen = copies.progress()
    assert seen
    killed()
    assert copies.find("v0"), "it was complete"
    copies.keep_only(None)
    assert made(copies, "v1").read_bytes() == b"v1"
    names = {path.name for path in copies.folder.iterdir()}
    assert names == {"users", "fetching", "v1.safetensors"}
    copies.close()


def test_the_folder_of_a_killed_run_is_removed_by_the_next(tmp_path: Path, killed: Callable[[], None]) -> None:
    living = opened(tmp_path, "tcp://elsewhere:1")
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 2, "a copy in use stays"
    killed()
    living.close()
    other = opened(tmp_path, "tcp://elsewhere:2")
    assert list(tmp_path.glob(f"{PREFIX}*")) == [other.folder]
    other.close()


def test_without_room_there_is_a_sentence_with_a_cure(tmp_path: Path) -> None:
    copies = opened(tmp_path)
    assert copies.begin()
    with pytest.raises(WireError, match="RHYMED_SHARED_MEMORY"):
        copies.part("v1", 1 << 60)
    copies.close()
