"""The record of a run's start, from which it can be reproduced."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run import provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_a_start_keeps_the_command_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "very-secret-value")
    monkeypatch.setenv("RHYMED_TRAINER__LR", "1e-6")
    provenance.note(tmp_path, provenance.now(["run", "a b.toml", "-o", "x=very-secret-value"], Config()))
    (line,) = provenance.read(tmp_path)
    assert "RHYMED_TRAINER__LR=1e-6" in line.command
    assert line.command.endswith("rhymed run 'a b.toml' -o 'x=***'") or line.command.endswith(
        "rhymed run 'a b.toml' -o x=***"
    )
    assert line.versions["rhymed"]
    assert "cores" in line.machine["processor"]
    assert provenance.read(tmp_path / "gone") == []
    assert (line.commit, line.changed) == provenance.code(provenance.CHECKOUT)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "code.py").write_text("one\n")
    git(folder, "init", "-q")
    git(folder, "add", "code.py")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first", "--no-gpg-sign")
    return folder


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@needs_git
def test_the_commit_of_a_checkout_and_whether_it_was_changed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "runs").mkdir()
    (checkout / "runs" / "config.json").touch()
    assert provenance.code(checkout) == (commit, False), "what git does not follow is no change"
    monkeypatch.setenv("GIT_DIR", str(checkout / "elsewhere"))
    (checkout / "code.py").write_text("two\n")
    assert provenance.code(checkout) == (commit, True)


@needs_git
def test_a_repository_around_what_is_installed_is_somebody_elses(checkout: Path) -> None:
    (checkout / "site-packages").mkdir()
    assert provenance.code(checkout / "site-packages") == ("", False)
    shutil.rmtree(checkout / ".git")
    (checkout / ".git").write_text("gitdir: gone\n")
    assert provenance.code(checkout) == ("", False)


@needs_git
def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert provenance.code(tmp_path) == ("", False)


def test_where_git_is_missing_or_slow_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert provenance.code(tmp_path) == ("", False)
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "git"
    slow.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(provenance, "GIT_S", 0.05)
    assert provenance.code(tmp_path) == ("", False)


def test_files_of_data_and_rewards_are_distinguished_by_what_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "mine.py").write_text("def reward(): ...")
    (tmp_path / "large.parquet").write_bytes(b"x" * 100)
    monkeypatch.setattr(provenance, "LARGEST", 99)
    config = Config.model_validate({
        "data": {"path": "rows.jsonl"},
        "eval": {"datasets": [{"name": "a", "path": "large.parquet"}, {"name": "b", "path": "gone.jsonl"}]},
        "reward": {"scorers": [{"scorer": "mine.py:reward"}, {"scorer": "math"}, {"scorer": "package.mod:f"}]},
    })  # fmt: skip
    assert provenance.files(config) == {
        "rows.jsonl": hashlib.sha256(b"{}").hexdigest(),
        "large.parquet": "",
        "mine.py": hashlib.sha256(b"def reward(): ...").hexdigest(),
    }
    assert provenance.files(Config()) == {}, "generated data and a scorer of ours have no file"


def test_files_of_tools_environments_and_programs_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tools.py", "game.py", "agent.py", "cases.json"):
        Path(name).write_text(name)
    digest = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("tools.py", "game.py", "agent.py")}
    both = Config.model_validate({"environment": {"tools": "tools.py:a,b", "factory": "game.py:Game"}})
    assert provenance.files(both) == {name: digest[name] for name in ("tools.py", "game.py")}
    program = Config.model_validate({"environment": {"command": "python agent.py --level 3"}})
    assert provenance.files(program) == {"agent.py": digest["agent.py"]}
    assert provenance.files(Config.model_validate({"environment": {"factory": "skyrl_gym:gsm8k"}})) == {}
    assert provenance.files(Config.model_validate({"environment": {"command": "broken 'quote"}})) == {}


def test_a_start_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    (tmp_path / "starts.jsonl").write_text(
        '{"t": 1.0, "command": "rhymed run", "folder": "/", "versions": {}, "machine": {}}\n'
    )
    (line,) = provenance.read(tmp_path)
    assert (line.commit, line.changed, line.files) == ("", False, {})
