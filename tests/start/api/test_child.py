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

    def tick(self) -> None:
        self.seen.append("tick")

    def close(self) -> None:
        self.seen.append("close")


def test_time_without_an_event_reaches_the_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a clock is not mistaken for a run that hangs."""
    monkeypatch.setattr(child, "TICK_S", 0.005)
    display = Recorder()
    outcome = child.Child(["run", str(tmp_path / "none.toml")]).follow(display)
    assert isinstance(outcome.error, ConfigError)
    assert (display.seen[0], display.seen[-1]) == ("tick", "close")


def test_a_notebook_shows_the_callers_line_and_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as failure:
        rhymed.train(dataset=[{"prompt": "a"}], epoch=4)
    lines = failure.value._render_traceback_()
    assert lines[-1] == "ConfigError: epoch: no such setting; did you mean epochs?"
    assert lines[0].startswith(f"{__file__}, line ")
    assert lines[1] == '    rhymed.train(dataset=[{"prompt": "a"}], epoch=4)'
    assert len(lines) == 4, "without frames of the package"
    assert capsys.readouterr().out == "", "nothing is shown of a run that does not begin"
