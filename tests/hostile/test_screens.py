"""A snapshot and records in which every text of others is hostile, on every screen, page, log and export."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rhymed.core.config import Config, Run
from rhymed.core.console import Terminal
from rhymed.core.messages import JournalEntry, Queues, SampleId
from rhymed.core.output import show_json
from rhymed.core.run.layout import layout_of
from rhymed.show.dashboard.prometheus import exposition
from rhymed.show.top import plain
from rhymed.show.top.screen import picture
from rhymed.show.top.state import Shown
from rhymed.start.launch.screen import Screen, phases
from rhymed_workers.reward.outcome import Outcome, combine
from rhymed_workers.reward.scorers.result import Verdict
from tests.show.top.sample_run import NOW, shown, snapshot

BAD = "\x1b[31m\x1b]0;owned\x07\x9b2J\r\n-- forged line\u202egnp\u2066\u200f\u200b\ufeff\x7f" + "x" * (1 << 20)


def spoiled(value: Any, place: str = "") -> Any:
    """Plain data with all texts replaced but those that have a fixed set of values."""
    if isinstance(value, str):
        return value if place in ("role", "type", "prompt") else BAD
    if isinstance(value, list):
        return [spoiled(one) for one in value]
    if isinstance(value, dict) and place in ("stats", "metrics", "val", "store", "counts", "oldest_s", "states"):
        return {**value, BAD: 1}
    if isinstance(value, dict):
        return {name: spoiled(one, name) for name, one in value.items() if name != "queues"} | (
            {"queues": value["queues"] | {BAD: 3}} if "queues" in value else {}
        )
    return value


@pytest.fixture(scope="module")
def hostile() -> Queues:
    """As a hostile broker would send it."""
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot()))
    plain["troubles"] = [BAD, "waits"]
    return msgspec.msgpack.decode(msgspec.msgpack.encode(spoiled(plain)), type=Queues)


def is_safe(text: str, *, colours: bool = False) -> bool:
    if colours:
        text = text.replace("\x1b[", "[")  # rich's own; a foreign one has no escape character left
    return all(c.isprintable() or c == "\n" for c in text)


def on_terminal(renderable: Any) -> str:
    out = io.StringIO()
    Terminal(file=out, width=140, force_terminal=False).print(renderable)
    return out.getvalue()


def _noted(found: Queues) -> Shown:
    made = shown(found)
    made.notices = [BAD]
    return made


SCREENS: dict[str, Callable[[Queues], str]] = {
    "rhymed queues": lambda found: on_terminal(plain.render(found, 140)),
    "rhymed run, rhymed top": lambda found: "\n".join(row.plain for row in picture(_noted(found), 140, 48, NOW)),
    "rhymed run, phases": lambda found: phases(found.workers, []),
    "/metrics": lambda found: exposition(found).decode(),
}


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_shows_it_harmless_and_short(hostile: Queues, screen: str) -> None:
    text = SCREENS[screen](hostile)
    assert is_safe(text), [c for c in text if not c.isprintable() and c != "\n"][:5]
    assert len(text) < 200_000
    assert not any(row.lstrip().startswith("-- forged") for row in text.splitlines())
    assert "<script" not in text


def test_json_for_programs(hostile: Queues, capsys: pytest.CaptureFixture[str]) -> None:
    show_json(msgspec.json.encode(hostile).decode())
    out = capsys.readouterr().out
    assert is_safe(out)
    assert json.loads(out)["troubles"][1].startswith("\\x1b[31m")


@pytest.mark.parametrize("plain", [True, False])
def test_the_lines_of_a_run(hostile: Queues, tmp_path: Path, plain: bool) -> None:
    out = io.StringIO()
    config = Config(run=Run(folder=str(tmp_path), name="r"))
    terminal = Terminal(file=out, width=120, force_terminal=not plain)
    with Screen(config, layout_of(config), plain=plain, console=terminal) as screen:
        screen.show(hostile)
        screen.report(f"rollout-0 ended (exit status 1: {BAD})")
        screen.show(hostile)
        screen.failed(BAD)
    found = out.getvalue()
    assert "\x1b]" not in found
    assert "\x1b[31m\x1b" not in found
    assert not any(mark in found for mark in ("\x07", "\x9b", "\u202e", "\u2066", "\u200f", "\u200b", "\x7f"))
    assert sum(row.startswith("-- forged") for row in found.splitlines()) <= 1, "of the reason of a failure, at most"


def test_errors_and_reasons_are_short_lines_wherever_they_come_from() -> None:
    verdict = Verdict(error=BAD, named={BAD: 1.0})
    outcome = combine([], [verdict])
    entry = JournalEntry(id=SampleId(0, "a", 0), state="dropped", reason=BAD)
    for text in (
        verdict.error,
        *verdict.named,
        outcome.error,
        Outcome(reward=1.0, parts={BAD: 1.0}).kept([BAD, "x"], 1.0),
        entry.reason,
    ):
        for one in [text] if isinstance(text, str) else text:
            assert one.isprintable()
            assert len(one) <= 4000
