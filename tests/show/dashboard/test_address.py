"""`rhymed run` prints where its dashboard is, and `rhymed view` serves one."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.wire.addresses import HttpAddress
from rhymed.show.dashboard import listen
from rhymed.start.cli import main
from rhymed.start.cli.dashboard import folder_of, is_run
from rhymed.start.launch.screen import Screen


def screen(where: RunLayout, config: Config) -> tuple[Screen, io.StringIO]:
    said = io.StringIO()
    return Screen(config, where, plain=True, console=Console(file=said, width=80)), said


def published(run: Path, address: HttpAddress) -> None:
    """Where it is, now. A file's own time is some milliseconds late: it may seem older than what was before it."""
    listen.write(run, address)
    os.utime(run / listen.ADDRESS_FILE, (time.time(), time.time()))


def test_an_address_that_vanishes_is_published_again(run: Path) -> None:
    address = HttpAddress("127.0.0.1", 8421)
    listen.keep(run, address)
    assert listen.read(run) == address
    listen.write(run, HttpAddress("127.0.0.1", 1))
    listen.keep(run, address)
    assert listen.read(run) == HttpAddress("127.0.0.1", 1), "another dashboard's address stays"
    listen.keep(run / "gone", address)
    assert not (run / "gone").exists()


def test_the_address_is_published_once(run: Path) -> None:
    config = Config.model_validate_json((run / "config.json").read_text())
    listen.write(run, HttpAddress("127.0.0.1", 1))
    os.utime(run / listen.ADDRESS_FILE, (1, 1))  # of an earlier start
    shown, said = screen(layout_of(config), config)
    shown.show(None)
    assert "http:" not in said.getvalue()
    published(run, HttpAddress("127.0.0.1", 8421))
    shown.show(None)
    shown.show(None)
    assert said.getvalue().count("watch    http://127.0.0.1:8421/\n") == 1


def test_where_the_token_is_but_not_the_token(run: Path) -> None:
    config = Config.model_validate_json((run / "config.json").read_text())
    shown, said = screen(layout_of(config), config)
    published(run, HttpAddress("10.0.0.1", 8421))
    shown.show(None)
    assert f"http://10.0.0.1:8421/?token=…   (the token is in {run / 'dashboard.token'})" in said.getvalue()


def test_a_run_is_served_until_ctrl_c(run: Path) -> None:
    command = [sys.executable, "-m", "rhymed", "view", str(run), "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line[:2] == ["watched", "at"]
        with urllib.request.urlopen(line[2] + "api/run", timeout=60) as answer:
            assert json.load(answer)["state"] == "finished"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize(("what", "complaint"), [("nothing", "does not exist"), (".", "is not a run's folder")])
def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture, what: str, complaint: str) -> None:
    assert main(["view", str(tmp_path / what)]) == 2
    assert complaint in capsys.readouterr().err
    assert main(["view", str(tmp_path), "--http", "nonsense"]) == 2


def test_a_folder_of_runs_names_one_of_them(run: Path, tmp_path: Path) -> None:
    assert folder_of(run) == run.resolve()
    with pytest.raises(ConfigError, match="holds 1 run: name one, "):
        folder_of(run.parent)
    assert not is_run(run.parent)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not a run's folder"):
        folder_of(tmp_path / "empty")
