"""A run's keys as files: who may read them, and which count."""

from pathlib import Path

import pytest

from rhymed.core.errors import ConfigError
from rhymed.core.wire import keys
from rhymed.core.wire.keys import ROLES, Keyring, make_keys, read_public, read_secret
from rhymed.start.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    assert make_keys(made, ROLES) == list(ROLES)
    return made


def test_every_role_gets_a_pair_that_only_the_owner_can_read(folder: Path) -> None:
    assert sorted(read_public(folder).values()) == sorted(ROLES)
    for role in ROLES:
        assert (folder / f"{role}.secret").stat().st_mode & 0o777 == 0o600
        assert read_public(folder)[keys.public_of(read_secret(folder, role)).decode()] == role
    assert folder.stat().st_mode & 0o777 == 0o700


def test_making_twice_changes_nothing(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert make_keys(folder, ROLES) == []
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_lost_public_key_is_not_made_up_for_silently(folder: Path) -> None:
    (folder / "public").unlink()
    with pytest.raises(ConfigError, match=r"broker\.secret exists, but .*public has no key of broker"):
        make_keys(folder, ROLES)


def test_a_lost_file_is_named_with_its_cure(folder: Path, tmp_path: Path) -> None:
    """`rhymed keygen` makes no new pair for a role that has a public key."""
    (folder / "reward.secret").unlink()
    with pytest.raises(
        ConfigError, match=r"reward\.secret: No such file .*or make a new set of keys in another folder"
    ):
        Keyring("reward", folder).own_public()
    (folder / "public").unlink()
    with pytest.raises(ConfigError, match=r"public: No such file or directory; copy it from another machine"):
        Keyring("store", folder).own_public()
    with pytest.raises(ConfigError, match=r"`rhymed keygen .*none` makes a run's keys"):
        Keyring("reward", tmp_path / "none").own_public()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(folder: Path, mode: int) -> None:
    (folder / "reward.secret").chmod(mode)
    with pytest.raises(ConfigError, match="can be read by others"):
        read_secret(folder, "reward")


def test_public_keys_that_others_can_change_are_refused(folder: Path) -> None:
    (folder / "public").chmod(0o666)
    with pytest.raises(ConfigError, match="can be changed by others"):
        read_public(folder)


def test_a_process_needs_no_secrets_but_its_own(folder: Path) -> None:
    for role in ROLES:
        if role != "rollout":
            (folder / f"{role}.secret").unlink()
    ring = Keyring("rollout", folder).to("broker")
    assert ring.own_public()
    assert len(ring.server_key()) == 40
    with pytest.raises(ConfigError, match=r"broker\.secret: No such file"):
        Keyring("broker", folder).own_public()


def test_a_secret_of_another_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ROLES)
    (folder / "reward.secret").write_bytes((tmp_path / "other" / "reward.secret").read_bytes())
    with pytest.raises(ConfigError, match="does not belong to a key of"):
        Keyring("reward", folder).own_public()


def test_what_is_wrong_in_a_file_is_said_without_a_secret(folder: Path) -> None:
    secret = read_secret(folder, "store").decode()
    (folder / "store.secret").write_text(secret[:-1])
    with pytest.raises(ConfigError, match="holds no secret key") as caught:
        read_secret(folder, "store")
    assert secret[:10] not in str(caught.value)
    assert secret not in repr(Keyring("store", folder))


@pytest.mark.parametrize("line", ["rollout", "king abc", "rollout " + "~" * 40, "rollout " + "#" * 40, "\x00"])
def test_a_line_that_is_no_key_is_named(folder: Path, line: str) -> None:
    with (folder / "public").open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(ConfigError, match=rf"public, line {len(ROLES) + 2}: not a role"):
        read_public(folder)


def test_one_key_has_one_role_and_one_role_one_key(folder: Path, tmp_path: Path) -> None:
    mine, good = read_public(folder), (folder / "public").read_text()
    make_keys(tmp_path / "other", ROLES)
    others = read_public(tmp_path / "other")
    viewer = next(key for key, role in mine.items() if role == "viewer")
    broker = next(key for key, role in others.items() if role == "broker")
    for line in (f"operator {viewer}\n", f"broker {broker}\n"):
        (folder / "public").write_text(good + line)
        with pytest.raises(ConfigError, match="each role has one key"):
            read_public(folder)


def test_the_command_tells_what_to_copy_and_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "k"
    assert main(["keygen", str(folder), "--role", "rollout", "--role", "broker"]) == 0
    output = capsys.readouterr().out
    assert "rollout.secret  ->  every machine with rollout workers" in output
    assert "net.keys = " in output
    assert sorted(file.name for file in folder.iterdir()) == ["broker.secret", "public", "rollout.secret"]
    assert main(["keygen", str(folder), "--role", "rollout"]) == 0
    output += capsys.readouterr().out
    assert "nothing to do" in output
    assert all(read_secret(folder, role).decode() not in output for role in ("rollout", "broker"))


def test_the_command_refuses_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["keygen", str(tmp_path / "file" / "keys")]) == 2
    assert "Traceback" not in capsys.readouterr().err
