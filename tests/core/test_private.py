"""Names in folders where other users may make files: who made them first is another local user, and never trusted."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rhymed.core import private
from rhymed.core.config import Config
from rhymed.core.errors import AddressRefused, NotOurs
from rhymed.core.run import folder as runs
from rhymed.core.run.layout import ID, layout_of
from rhymed.core.wire import addresses
from rhymed_workers.engines import launch
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.weights.copies import HostCopies

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
STRANGER = 65534
SQUATS = {
    "folder": "os.mkdir(name); os.chmod(name, 0o777)",
    "link": "os.mkdir(name + '.mine', 0o777); os.symlink(name + '.mine', name)",
    "link to the victim's": "os.symlink(victim, name)",
    "file": "open(name, 'w').close(); os.chmod(name, 0o666)",
}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as /tmp and /dev/shm are, which is both of them for this test."""
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(made))
    monkeypatch.setenv("RHYMED_SHARED_MEMORY", str(made))
    return made


Squat = Callable[[Path, str], None]


@pytest.fixture
def squat(tmp_path: Path) -> Squat:
    """Make the name first, as another user, who may enter this one folder."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)

    def made(name: Path, how: str) -> None:
        code = (
            f"import os; at = os.open({str(name.parent)!r}, os.O_RDONLY); os.fchdir(at); os.umask(0)\n"
            f"os.setgid({STRANGER}); os.setuid({STRANGER}); name, victim = {name.name!r}, {str(victim)!r}\n"
            f"{SQUATS[how]}"
        )
        subprocess.run([sys.executable, "-I", "-c", code], check=True)
        assert name.lstat().st_uid == STRANGER

    return made


def own_alone(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@pytest.mark.parametrize("how", SQUATS)
def test_what_another_user_made_is_not_used(shared: Path, squat: Squat, how: str, caplog) -> None:
    wanted = shared / "wanted"
    squat(wanted, how)
    assert private.trouble(wanted)
    with pytest.raises(NotOurs, match="wanted"):
        private.own(wanted)
    used = private.folder(wanted)
    assert used != wanted
    assert own_alone(used)
    assert "so " in caplog.text


def test_what_we_made_is_used_unless_others_may_write_it(shared: Path) -> None:
    wanted = shared / "wanted"
    assert private.folder(wanted) == wanted
    wanted.chmod(0o755)
    assert private.folder(wanted) == wanted
    assert own_alone(wanted)
    wanted.chmod(0o777)
    assert private.folder(wanted) != wanted


@pytest.mark.parametrize("how", SQUATS)
def test_weights_are_published_and_copied_elsewhere(shared: Path, squat: Squat, tmp_path: Path, how: str) -> None:
    import torch

    first = Publisher(tmp_path / "weights")
    name = first.publish(0, [("w", torch.zeros(3))]).path.parent
    assert own_alone(name)
    first.close()
    plain = shared / name.name.rpartition("-")[0]  # what a stranger guesses
    for one in (plain, name):
        squat(one, how)
    second = Publisher(tmp_path / "weights")
    published = second.publish(1, [("w", torch.ones(3))])
    assert own_alone(published.path.parent)
    assert published.path.parent.parent == shared
    second.close()

    copies = HostCopies("tcp://there:1", 100)
    usual = copies.folder
    copies.close()
    squat(usual, how)
    copies = HostCopies("tcp://there:1", 100)
    assert copies.folder != usual
    assert own_alone(copies.folder)
    copies.close()
    assert not copies.folder.exists()
    assert usual.lstat().st_uid == STRANGER


def test_a_folder_of_weights_that_is_removed_and_made_by_another_is_left(shared, squat, tmp_path) -> None:
    import torch

    publisher = Publisher(tmp_path / "weights")
    first = publisher.publish(0, [("w", torch.zeros(3))]).path
    first.unlink()
    first.parent.rmdir()
    squat(first.parent, "folder")
    second = publisher.publish(1, [("w", torch.ones(3))]).path
    assert second.parent != first.parent
    assert own_alone(second.parent)
    publisher.close()


@pytest.mark.parametrize("how", SQUATS)
def test_a_run_has_its_sockets_elsewhere(shared: Path, squat: Squat, tmp_path: Path, how: str, caplog) -> None:
    config = Config.model_validate({"run": {"folder": str(tmp_path), "name": "squatted"}})
    expected = layout_of(config).sockets
    squat(expected, how)
    with pytest.raises(AddressRefused):
        addresses.claim(str(expected / "broker"))
    with pytest.raises(AddressRefused):
        addresses.check_owner(str(expected / "broker"))
    _, layout = runs.create(config)
    assert layout.sockets != expected
    assert "this run's are in" in caplog.text
    assert layout_of(config) == layout
    addresses.claim(layout.broker.removeprefix("ipc://"))
    assert own_alone(layout.sockets)
    (shared / expected.name).rename(shared / "gone")
    assert layout_of(config) == layout, "those of a living run do not move"
    assert stat.S_IMODE((layout.folder / ID).stat().st_mode) == 0o600


def test_the_configuration_of_vllms_logs_has_no_name(shared: Path, squat: Squat, monkeypatch, tmp_path: Path) -> None:
    file = shared / f"rhymed-vllm-logging-{os.getpid()}.json"
    squat(file, "link to the victim's")
    monkeypatch.setattr(
        os,
        "environ",
        {k: v for k, v in os.environ.items() if k not in (launch.LOGGING, "TMPDIR", "TORCHINDUCTOR_CACHE_DIR")},
    )
    before = sorted(shared.iterdir())
    launch.environment()
    read = Path(os.environ[launch.LOGGING]).read_text()
    assert '"vllm"' in read
    code = f"import os; os.setgid({STRANGER}); os.setuid({STRANGER}); open({os.environ[launch.LOGGING]!r})"
    refused = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert "PermissionError" in refused.stderr
    assert [one for one in sorted(shared.iterdir()) if one not in before] == [private.compiled()]
    launch.end_children()


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_living_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hold = "with private.TemporaryFolder('rhymed-t') as one: print(one, flush=True); input()"
    code = f"from rhymed.core import private\n{hold}"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    killed, living = (Path(one.stdout.readline().strip()) for one in run if one.stdout)
    assert killed.is_dir()
    assert living.is_dir()
    run[0].kill()
    run[0].communicate()
    with private.TemporaryFolder("rhymed-t") as mine, private.TemporaryFolder("rhymed-t") as other:
        assert [killed.exists(), living.exists(), mine.exists(), other.exists()] == [False, True, True, True]
    assert not mine.exists()
    run[1].communicate("\n", timeout=60)
    assert not living.exists(), "a process that ends removes its own"
