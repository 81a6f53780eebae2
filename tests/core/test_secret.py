"""One list of what is secret, and every place that shows something uses it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.run.folder import has_secrets
from rhymed.core.secret import hide, of_environment, redacted
from rhymed.core.service.logfile import JsonLine
from rhymed.records.remote.backups import Chunks
from rhymed.records.remote.place import open_place

TEXTS = [
    "GET https://host/v1?api_key=SESAME1234&n=1",
    "GET https://host/v1?n=1&access_token=SESAME1234",
    "postgresql://me:SESAME1234@host/db",
    "postgresql://me:SES@ME1234SESAME1234@host/db",
    "Authorization: Bearer SESAME1234",
    "Authorization: Basic SESAME1234=",
    "{'authorization': 'token SESAME1234'}",
    "bearer SESAME1234",
    "password=SESAME1234",
    "api-key=SESAME1234",
    "OPENAI_API_KEY=SESAME1234",
    "hf_SESAME1234",
    "sk-SESAME1234",
    "ghp_SESAME1234",
    "github_pat_SESAME1234",
    "https://host/file?X-Amz-Signature=SESAME1234&n=1",
    "AWS_SECRET_ACCESS_KEY=SESAME1234",
    "AWS_SESSION_TOKEN='SESAME1234'",
    'client_secret = "SESAME1234 and SESAME1234"',
    '{"private_key": "SESAME1234"}',
    '{\\"private_key\\": \\"SESAME1234\\"}',
    '{"password": "a\\"SESAME1234"}',
    '{\\"password\\": \\"a\\\\\\"SESAME1234\\"}',
    "{'password': 'a\\'SESAME1234'}",
    '{"password": "a\\\\\\\\SESAME1234\\\\\\\\"}',
    "password='C:\\SESAME1234\\'",
    "x-api-key: SESAME1234",
    "Cookie: a=SESAME1234; b=SESAME1234",
    "password: SESAME1234",
    "the token = SESAME1234",
    "curl --api-key SESAME1234",
    "-----BEGIN RSA PRIVATE KEY-----\nSESAME1234\n-----END RSA PRIVATE KEY-----",
    "eyJhbGciOiJI.SESAME1234.SESAME1234",
]
SETTINGS = [
    {"token": "SESAME1234"},
    {"a": {"api_key": "SESAME1234"}},
    {"reward": [{"headers": {"Authorization": "SESAME1234", "x-api-key": "SESAME1234", "Cookie": "SESAME1234"}}]},
    {"auth": "SESAME1234"},
    {"credentials": {"user": "me", "more": ["SESAME1234"]}},
    {"passwd": ["SESAME1234"]},
    *(
        {name: "SESAME1234"}
        for name in ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "private_key", "cookie")
    ),
    *(
        {name: "SESAME1234"}
        for name in ("session_token", "clientSecret", "accessToken", "api_keys", "DB_PWD", "set-cookie")
    ),
    *({"url": text} for text in TEXTS),
]
HARMLESS = [
    "the token is 5 characters long",
    "https://host/path?n=1#part",
    "a basic example of authorization",
    "me@host and you@host: http://host",
    '<a href="https://host">name@host</a>',
    "val/d/acc/mean@4",
    "max_tokens=5 token_budget=7 pad_token=<pad> eos_token='</s>' tokenizer=fast",
    '{"stop_token": "</s>", "tokens": [1], "tokenizer": "a", "public_key": "b"}',
    "ms_per_token = 3",
    "the store needs a secret: make one",
    "a token: of the vocabulary",
    "set HF_HUB_OFFLINE=1, or call hf_hub_download or sk-learn-like",
    "PWD=/home/me",
]


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_shows_a_secret(text: str) -> None:
    assert "SESAME1234" not in hide(text)
    assert "SESAME1234" not in hide(f"<td>{text}</td>")
    assert hide(f"<td>{text}</td>").endswith("</td>")
    assert "SESAME1234" not in JsonLine("", {}).hide(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text: str) -> None:
    assert hide(text) == text


@pytest.mark.parametrize("part", ["a-", "sk-", "-eyJaaaaaaaa", "--a ", "token", "= ", "?-"])
def test_a_long_text_takes_time_in_proportion(part: str) -> None:
    """With time in proportion to its square it would exceed the time limit of a test."""
    text = part * (500_000 // len(part))
    assert hide(text) == text


@pytest.mark.parametrize("settings", SETTINGS, ids=json.dumps)
def test_no_setting_shows_a_secret(settings: dict[str, object]) -> None:
    assert "SESAME1234" not in json.dumps(redacted(settings))


def test_other_settings_stay() -> None:
    settings = {
        "max_tokens": 5,
        "eos_token": "</s>",
        "token_budget": 5,
        "pad_token": "x",
        "tokenizer": "y",
        "PWD": "/",
        "author": "me",
        "token": "",
        "n": None,
        "b": [True, 1.5, "x"],
    }
    assert redacted(settings) == settings
    assert not has_secrets(Config())
    assert redacted({"password": 1234, "api_key": None}) == {"password": "***", "api_key": None}


def test_secrets_of_the_environment() -> None:
    environ = {
        "A_TOKEN": "SESAME1234",
        "MYPASSWORD": "SESAME12345",
        "SECRET": "short",
        "EOS_TOKEN": "<|im_end|>",
        "HOME": "/home/SESAME",
    }
    assert of_environment(environ) == ["SESAME12345", "SESAME1234"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its lock ends with its process
def test_sinks_get_the_same_as_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rhymed_broker.telemetry import __main__ as sender

    seen = []
    monkeypatch.setattr(sender, "open_sink", lambda name, run: seen.append(run.config))
    config = Config.model_validate({"run": {"folder": str(tmp_path)}})
    reward = config.reward.model_copy(update={"options": {"api_key": "SESAME1234"}})
    config = config.model_copy(update={"reward": reward})
    (tmp_path / config.run.name).mkdir()
    sender.Sender("wandb", config, 10.0)
    assert "SESAME1234" not in json.dumps(seen)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_copy_on_a_mounted_folder_may_be_read_by_no_more_than_the_original(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "config.json"
    file.write_text("SESAME1234")
    file.chmod(mode)
    remote = tmp_path / "remote"
    remote.mkdir()
    place = open_place(f"file://{remote}")
    with file.open("rb") as content:
        Chunks(place, set()).put(content)
    place.upload(file, "upload/config.json")
    copies = [Path(at, name) for at, _, names in os.walk(remote) for name in names]
    assert len(copies) == 2
    assert {stat.S_IMODE(copy.stat().st_mode) for copy in copies} == {mode}


def test_audits_pages_and_reports_read_reasons_without_secrets() -> None:
    from rhymed_store import browse

    for text in TEXTS:
        assert "SESAME1234" not in browse._shown(f"raised HTTPError: {text}\n  more".encode())
