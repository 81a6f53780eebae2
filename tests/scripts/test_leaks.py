"""The search for secrets: a planted one is found in a real repository, and what only looks like one is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rhymed.core.wire.keys import make_keys
from scripts.supply import leaks

PLANTED = {  # in parts, so that this file has none
    "a private key": "-----BEGIN OPENSSH" + " PRIVATE KEY-----",
    "a key of AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "a token of GitHub": "ghp_" + "a1B2" * 9,
    "a token of GitLab": "glpat-" + "x1Y2" * 5,
    "a token of Hugging Face": "hf_" + "aB3d" * 9,
    "a token of a package index": "pypi-AgEI" + "cHlwaS5v" * 8,
    "a token of Slack": "xoxb-" + "123456789012-abcdef",
    "a key of Google": "AIza" + "Sy0aB-c" * 5,
    "a key of a model's provider": "sk-ant-" + "a1b2c3d4" * 4,
    "a signed token (JWT)": "eyJ" + "hbGciOiJIUzI1.eyJ" + "zdWIiOiIxMjM0.SflKxwRJSMeKKF2",
    "a password in an address": "postgresql://me:" + "hunter2@db.internal/runs",
    "a value of that name": "WANDB_API_KEY" + "=4f3c2b1a09e8d7c6b5a4f3c2b1a09e8d7c6b5a4f",
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_secret_is_found_and_not_shown(what: str) -> None:
    (found,) = leaks.secrets_in("config.toml", f"[a]\nx = 1  # {PLANTED[what]}\n")
    assert (found.what, found.line) == (what, 2)
    assert found.text not in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "token = os.environ['HF_TOKEN']",
        "tokens: NDArray[np.int32], secret: bytes = secrets.token_bytes(16)",
        "RHYMED_HTTP_TOKEN=$(openssl rand -hex 16)",
        "see https://example.org:8420/a@b and tcp://10.0.0.1:5550",
        "api_key: <the key of your account>",
        "http://me:secret@host/v1",
        "a task-list-of-many-things-to-do-by-tomorrow",
    ],
)
def test_what_only_looks_like_a_secret_is_none(text: str) -> None:
    assert not list(leaks.secrets_in("page.md", text))


def test_a_key_of_a_run_is_found_under_any_name_in_a_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    make_keys(tmp_path / "keys", ["rollout"])
    secret = (tmp_path / "keys/rollout.secret").read_text()
    (tmp_path / "notes.txt").write_text(secret)
    (tmp_path / "binary").write_bytes(b"\0\1" + secret.encode())
    found = list(leaks.scan(tmp_path, leaks.tracked(tmp_path)))
    assert {(one.path, one.what) for one in found} >= {
        ("keys/rollout.secret", "a file of keys or passwords"),
        ("keys/rollout.secret", "a key of a run"),
        ("notes.txt", "a key of a run"),
    }


def test_an_allowed_text_is_allowed_in_its_file_alone_and_only_while_it_is_there() -> None:
    text = "x = '" + PLANTED["a password in an address"] + "'"
    here, there = (list(leaks.secrets_in(path, text)) for path in ("a.py", "b.py"))
    allowed = f"# why\na.py {here[0].text}\n"
    assert not leaks.unexpected(here, allowed)
    assert len(leaks.unexpected([*here, *there], allowed)) == 1
    (unused,) = leaks.unexpected([], allowed)
    assert "a.py: no such text" in unused
