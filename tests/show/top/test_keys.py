"""Keys and clicks: what they change, and that nothing is steered before it was confirmed."""

from __future__ import annotations

import msgspec
import pytest

from rhymed.core.messages import Drain, Pause
from rhymed.show.top.keys import click, press, wheel
from rhymed.show.top.state import Connection, UiState
from rhymed.show.top.views import listing
from tests.show.top.sample_run import NOW, group, make_ui, rollout, snapshot


def keys(seen: UiState, *pressed: str) -> list:
    """What each key wants of the terminal's owner."""
    return [press(seen, key, key if len(key) == 1 else None, 5) for key in pressed]


def names(seen: UiState) -> list[str]:
    table = listing(seen)
    return [table.name(row) for row in table.rows]


def test_up_and_down_and_pages() -> None:
    seen = make_ui()
    order = names(seen)
    assert order[:3] == ["trainer", "rollout-0", "rollout-1"]
    assert order[-1] == "reward-0"
    for pressed, expected in (
        ("down", 1), ("j", 2), ("k", 1), ("pagedown", 6), ("end", 10), ("down", 10), ("pageup", 5), ("home", 0),
        ("up", 0),
    ):  # fmt: skip
        keys(seen, pressed)
        assert seen.selected["workers"] == order[expected], pressed


def test_what_is_selected_stays_so_when_rows_come_and_go() -> None:
    seen = make_ui()
    keys(seen, *["down"] * 4)
    assert seen.selected["workers"] == "rollout-3"
    seen.queues = msgspec.structs.replace(snapshot(), workers=[rollout(3), rollout(9), rollout(1)])
    table = listing(seen)
    assert table.name(table.rows[table.selected(seen)]) == "rollout-3"
    seen.queues = msgspec.structs.replace(snapshot(), workers=[])
    keys(seen, "down", "enter", "d")
    assert seen.view == "workers"


def test_sorting_goes_round_and_back() -> None:
    seen = make_ui()
    first = names(seen)
    for _ in range(6):
        keys(seen, "s")
    assert seen.sorts["workers"] == ("tok/s", False)
    assert names(seen)[:2] == ["rollout-8", "rollout-7"]
    keys(seen, "r")
    assert names(seen)[-1] == "rollout-8"
    for _ in range(8):
        keys(seen, "s")
    assert seen.sorts["workers"] == ("", False)
    assert names(seen) == first


def test_a_filter_is_written_and_taken_away() -> None:
    seen = make_ui()
    keys(seen, "/", "N", "o", "d", "e", "-", "1", "x", "backspace")
    assert seen.typing
    assert (seen.filter, len(names(seen))) == ("Node-1", 4)
    keys(seen, "enter")
    assert not seen.typing
    keys(seen, "home", "escape")
    assert seen.filter == ""
    keys(seen, "/", "q", "p", "escape")
    assert (seen.filter, seen.question) == ("", None)
    keys(seen, "/", *"z" * 100, "enter")
    assert names(seen) == []
    assert len(seen.filter) <= 40


def test_into_a_worker_a_sample_and_back() -> None:
    seen = make_ui()
    seen.selected["workers"] = "rollout-2"
    assert keys(seen, "enter") == ["ask"]
    assert (seen.view, seen.worker) == ("worker", "rollout-2")
    assert keys(seen, "down", "enter") == [None, "ask"]
    assert (seen.view, seen.prompt) == ("group", (12, f"{1:016x}"))
    seen.group = group()
    assert seen.selected["group"] == "4"
    assert keys(seen, "enter") == [None]
    keys(seen, "escape")
    assert seen.view == "worker"
    keys(seen, "escape", "escape")
    assert seen.view == "workers"


def test_groups_and_back() -> None:
    seen = make_ui()
    keys(seen, "g", "down", "enter")
    assert seen.view == "group"
    assert seen.prompt == (12, snapshot().open_steps[0].rows[1].prompt)
    keys(seen, "escape", "tab")
    assert seen.view == "workers"


def test_only_y_pauses() -> None:
    for other in ("n", "enter", "escape", "p", "q", "space"):
        seen = make_ui()
        assert keys(seen, "p") == [None]
        assert seen.question is not None
        assert seen.question.text[1] == "The 56 samples that workers hold are finished;"
        assert keys(seen, other) == [None], other
        assert (seen.question, seen.note) == (None, "nothing was done")
    assert keys(make_ui(), "p", "y") == [None, Pause(paused=True)]
    paused = make_ui(msgspec.structs.replace(snapshot(), paused=True))
    assert keys(paused, "p", "y") == [None, Pause(paused=False)]


def test_the_selected_worker_is_drained_and_given_work_again() -> None:
    seen = make_ui()
    seen.selected["workers"] = "rollout-2"
    assert keys(seen, "d", "y")[-1] == Drain(worker="rollout-2", drained=True)
    seen.queues = msgspec.structs.replace(snapshot(), workers=[rollout(2, drained=True)])
    assert keys(seen, "enter", "d", "y")[-1] == Drain(worker="rollout-2", drained=False)


def test_what_is_asked_is_not_changed_by_what_comes_meanwhile() -> None:
    """The worker that was asked about is drained, not the one that is selected when the answer comes."""
    seen = make_ui()
    seen.selected["workers"] = "rollout-2"
    keys(seen, "d")
    seen.queues = msgspec.structs.replace(snapshot(), workers=[rollout(7)])
    assert click(seen, "rollout-7") is None
    assert keys(seen, "y") == [Drain(worker="rollout-2", drained=True)]


def test_the_trainer_is_not_drained() -> None:
    seen = make_ui()
    keys(seen, "d")
    assert seen.question is None
    assert (seen.is_error, seen.note) == (True, "the trainer cannot be drained: p pauses the run")


@pytest.mark.parametrize("state", ["waiting", "silent", "ended", "finished"])
def test_nothing_is_sent_to_who_does_not_answer(state: str) -> None:
    seen = make_ui()
    seen.connection = Connection(state, NOW)
    for key in "pd":
        assert keys(seen, key) == [None]
        assert seen.question is None
        assert "does not answer" in seen.note


def test_keys_before_the_first_answer_do_no_harm() -> None:
    seen = UiState()
    for key in ("down", "enter", "s", "r", "g", "p", "d", "escape", "/", "x", "enter", "?", "x", "left", "f5"):
        assert keys(seen, key) in ([None], ["ask"])


def test_help_closes_with_any_key_and_quitting_is_always_possible() -> None:
    seen = make_ui()
    keys(seen, "?", "p")
    assert not seen.help_shown
    assert seen.question is None
    for before in ((), ("?",), ("p",), ("/",)):
        seen = make_ui()
        keys(seen, *before)
        assert keys(seen, "ctrl+c") == ["quit"]
    assert keys(make_ui(), "q") == ["quit"]


def test_a_click_selects_and_a_second_one_opens() -> None:
    seen = make_ui()
    assert click(seen, "rollout-4") is None
    assert click(seen, "rollout-4") == "ask"
    assert seen.worker == "rollout-4"


def test_the_wheel_moves_the_selection() -> None:
    seen = make_ui()
    wheel(seen, 3)
    assert seen.selected["workers"] == "rollout-2"
