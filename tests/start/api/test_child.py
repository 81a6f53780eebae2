"""The child process of a run, as a display sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

import rhymed
from rhymed.core.errors import ConfigError
from rhymed.start.api import child
from rhymed.start.launch.events import AnyEvent


class Recorder:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def handle(self, event: AnyEvent) -> None:
        self.seen.append(type(event).__name__)

    def close(self) -> None:
        self.seen.append("close")


def test_the_events_reach_the_display_which_is_closed_after_the_last(tmp_path: Path) -> None:
    display = Recorder()
    outcome = child.Child(["run", str(tmp_path / "none.toml")]).follow(display)
    assert isinstance(outcome.error, ConfigError)
    assert display.seen == ["Failed", "close"]


def test_a_notebook_shows_the_callers_line_and_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as failure:
        rhymed.train(dataset=[{"prompt": "a"}], epoch=4)
    lines = failure.value._render_traceback_()
    assert lines[-1] == "ConfigError: epoch: no such setting; did you mean epochs?"
    assert lines[0].startswith(f"{__file__}, line ")
    assert lines[1] == '    rhymed.train(dataset=[{"prompt": "a"}], epoch=4)'
    assert len(lines) == 4, "without frames of the package"
    assert capsys.readouterr().out == "", "nothing is shown of a run that does not begin"
