"""Two heads for one run's folder on storage that both mount, where locks may not work."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rhymed.core.errors import ConfigError, FilesLost
from rhymed.core.run import lease as leases
from rhymed.core.run.lease import SharedLease, leased


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the next lines run on another machine."""
    (tmp_path / "run").mkdir()

    def on(name: str, now: float, boot: str = "") -> None:
        monkeypatch.setattr(leases, "host_id", lambda: name + boot)
        monkeypatch.setattr(leases.socket, "gethostname", lambda: name)
        monkeypatch.setattr(leases.time, "time", lambda: now)
        monkeypatch.setattr(leases.time, "monotonic", lambda: now)

    return on


def test_the_second_head_is_refused_until_the_first_is_gone_and_then_only_on_request(hosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hosts("a", 1000.0)
    first = SharedLease(run, locked=True, take_over=False)
    hosts("b", 1020.0)
    for take_over in (False, True):
        with pytest.raises(ConfigError, match=r"another head has this run: process \d+ on a.* wait 60 s"):
            SharedLease(run, locked=True, take_over=take_over)
    hosts("b", 1100.0)
    with pytest.raises(ConfigError, match=r"did not give it back: .* add --take-over"):
        SharedLease(run, locked=True, take_over=False)
    second = SharedLease(run, locked=True, take_over=True)
    hosts("a", 1130.0)
    with pytest.raises(FilesLost, match=r"b \(process \d+\) has taken over"):
        first.check()
    first.release()
    assert (run / leases.FILE).exists(), "it is the second head's"
    hosts("b", 1131.0)
    second.check()
    second.release()
    hosts("a", 1132.0)
    SharedLease(run, locked=True, take_over=False)


def test_a_head_that_renews_is_not_taken_over(hosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hosts("a", 1000.0)
    first = SharedLease(run, locked=True, take_over=False)
    hosts("a", 1055.0)
    first.check()
    hosts("b", 1100.0)
    with pytest.raises(ConfigError, match="last seen 45s ago"):
        SharedLease(run, locked=True, take_over=True)


def test_on_one_machine_a_killed_head_holds_up_nobody(hosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hosts("a", 1000.0)
    SharedLease(run, locked=True, take_over=False)
    SharedLease(run, locked=True, take_over=False)
    named = leases.decode((run / leases.FILE).read_bytes())
    assert named is not None
    (run / leases.FILE).write_bytes(leases.encode(msgspec.structs.replace(named, process=2**22 + 1)))
    SharedLease(run, locked=False, take_over=False)  # no process has such a number
    (run / leases.FILE).write_bytes(leases.encode(msgspec.structs.replace(named, process=1)))
    with pytest.raises(ConfigError, match=r"in use by a running `rhymed run` \(process 1\)"):
        SharedLease(run, locked=False, take_over=False)


def test_a_machine_that_was_started_again_continues_its_own_run(hosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hosts("a", 1000.0)
    SharedLease(run, locked=True, take_over=False)
    hosts("a", 1030.0, boot="again")
    with pytest.raises(ConfigError, match="another head has this run"):
        SharedLease(run, locked=True, take_over=False)
    hosts("a", 1070.0, boot="again")
    SharedLease(run, locked=True, take_over=False)


def test_a_copy_of_the_folder_is_free_and_a_clean_end_leaves_nothing(hosts, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    hosts("a", 1000.0)
    with leased(run, locked=True, take_over=False):
        copy.mkdir()
        (copy / leases.FILE).write_bytes((run / leases.FILE).read_bytes())
        hosts("b", 1001.0)
        SharedLease(copy, locked=True, take_over=False)
        hosts("a", 1002.0)
    assert not (run / leases.FILE).exists()
