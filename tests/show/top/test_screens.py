"""What the screen looks like: text files next to this one, and what must hold at any size."""

from __future__ import annotations

import msgspec
import pytest

from rhymed.core.messages import Queues, StepRow
from rhymed.core.run.timeline import Times
from rhymed.core.style import parts
from rhymed.core.text import age
from rhymed.show.top import screen
from rhymed.show.top import table as words
from rhymed.show.top.screen import picture
from rhymed.show.top.state import Connection, Shown
from rhymed.show.top.table import Column, fit
from tests.show.top.sample_run import NOW, rollout, same, shown, snapshot, with_environments


def plain(seen: Shown, width: int, height: int, now: float = NOW) -> list[str]:
    lines = picture(seen, width, height, now)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines), (width, height)
    return [line.plain for line in lines]


def changed(seen: Queues, /, **fields: object) -> Queues:
    return msgspec.structs.replace(seen, **fields)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_whole_screen(width: int, height: int) -> None:
    same(f"workers-{width}x{height}", plain(shown(), width, height))


def test_paused_and_in_trouble() -> None:
    troubles = ["paused by an operator for 12 s", "no reward worker is here", "and another", "one more"]
    workers = [rollout(0, drained=True), rollout(1, silent_s=9.0), rollout(2, stats={})]
    queues = changed(snapshot(), paused=True, troubles=troubles, workers=workers)
    same("paused-100x30", plain(shown(queues), 100, 30))


def test_samples_that_their_environment_answers() -> None:
    same("environments-100x30", plain(shown(with_environments()), 100, 30))


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        ("silent", "○ no answer for 1m05s"),
        ("ended", "■ ended 1m05s ago"),
        ("finished", "✓ finished"),
        ("live", "● live"),
    ],
)
def test_how_it_stands_with_the_broker_is_said_and_the_last_picture_kept(state: str, reported: str) -> None:
    seen = shown()
    seen.connection = Connection(state, NOW)
    first, *rest = plain(seen, 80, 24, NOW + 65)
    assert first.endswith(reported)
    assert rest == plain(shown(), 80, 24)[1:]


def test_before_the_first_answer() -> None:
    assert "asking the broker, 3.0s" in plain(Shown(connection=Connection("waiting", NOW)), 60, 6, NOW + 3)[0]


@pytest.mark.parametrize("width", [1, 2, 3, 10, 13, 25, 60, 99, 130])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 8, 23, 50])
def test_at_any_size_the_picture_is_cut_to_the_terminal(width: int, height: int) -> None:
    plain(shown(), width, height)


def test_names_from_others_cannot_move_the_cursor_or_change_colours() -> None:
    rows = [
        rollout(0, worker="rollout-\x1b[31m\n", host="[red]h", phase="\x07decode\r"),
        rollout(1, worker="rollout-漢字漢字漢字漢字漢字漢字漢字", host="ホスト"),
    ]
    lines = plain(shown(changed(snapshot(), workers=rows)), 130, 24)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]h" in text
    assert "rollout-\\x1b[31m\\n" in text


def test_infinite_and_missing_numbers_are_drawn() -> None:
    metrics = {"reward/mean": float("nan"), "response_length/mean": float("inf"), "staleness/mean": float("nan")}
    queues = changed(snapshot(), metrics=metrics, steps=0, step=0, queues={}, oldest_s={}, open_steps=[], workers=[])
    plain(shown(queues), 80, 24)


def test_of_a_crowd_as_many_workers_are_shown_as_there_is_room_for() -> None:
    queues = changed(snapshot(), workers=[rollout(number) for number in range(256)])
    lines = plain(shown(queues), 100, 30)
    listed = sum(line.startswith("▶ rollout-") for line in lines)
    assert len(lines) == 30
    assert lines[-1].startswith(f"and {256 - listed} more")


# -- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "width", "expected"),
    [
        ([5, 1, 1, 1], 8, [5, 1, 1, 1]),
        ([1, 1], 1, [1, 0]),
        ([1000, 1], 10, [9, 1]),
        ([0, 0], 10, [0, 0]),
        ([3, 0, 3], 4, [2, 0, 2]),
        ([5], 0, [0]),
    ],
)
def test_parts_of_a_bar(sizes: list[int], width: int, expected: list[int]) -> None:
    assert parts(sizes, width) == expected


def test_groups_that_were_replaced_are_counted_and_seen() -> None:
    states = {"scored": 16, "running": 8, "filtered": 8}
    row = StepRow(step=12, states=states, groups_ready=6, groups=8, filtered=2, refilled=2, open_s=3.0)
    line = screen.step_line(row, 12, 140).plain
    assert "6/8 groups, 2 replaced" in line
    assert "8 filtered" in line
    assert "---" in line
    full = {**snapshot().queues, "filtered": 0}
    assert "filtered" not in "".join(text.plain for text in screen.depths(changed(snapshot(), queues=full), 200))
    full["filtered"] = 8
    assert "filtered" in "".join(text.plain for text in screen.depths(changed(snapshot(), queues=full), 200))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (-1, "0.0s"), (9.94, "9.9s"), (59.9, "59s"), (182, "3m02s"), (86_399, "23h59m"), (1e6, "11d13h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (99_999, "99,999"), (99_999.9, "100k"), (999_949, "1.00M"), (1_234_567, "1.23M"), (1e12, "1000G"),
        (float("nan"), "-"), (-5, "-5"),
    ],
)  # fmt: skip
def test_counts_are_short(value: float, text: str) -> None:
    assert words.count(value) == text


def test_workers_are_sorted_by_number() -> None:
    assert sorted(["rollout-10", "rollout-2", "rollout-x"], key=words.natural_key) == [
        "rollout-2",
        "rollout-10",
        "rollout-x",
    ]


def test_text_is_cut_by_cells() -> None:
    assert words.cut("漢字漢字", 5) == "漢字…"
    assert words.fill("ab", 4, right=True) == "  ab"
    assert words.cut("abc", 0) == ""


COLUMNS = (
    Column("name", 4, lambda row: (row, ""), max_width=10),
    Column("much", 4, lambda row: ("1", ""), rank=2),
    Column("more", 4, lambda row: ("2", ""), rank=1),
)


def test_columns_go_by_rank_and_the_rest_grows() -> None:
    assert [(column.title, width) for column, width in fit(COLUMNS, 9)] == [("name", 4), ("more", 4)]
    assert [(column.title, width) for column, width in fit(COLUMNS, 30)] == [("name", 10), ("much", 4), ("more", 4)]
    assert [(column.title, width) for column, width in fit(COLUMNS, 1)] == [("name", 4)]


def test_the_title_has_elapsed_and_remaining_time_and_the_state_even_where_it_is_cut() -> None:
    seen = shown()
    seen.times = Times(3700.0, 750.0)
    assert screen.title(seen, 100, NOW).plain.startswith("demo  step 12/96  v12  1h01m elapsed, about 12 min left")
    narrow = screen.title(seen, 24, NOW).plain
    assert (narrow[:10], narrow[-6:], len(narrow)) == ("demo  step", "● live", 24)
    seen.times = Times(3700.0, None)  # before the second step
    assert screen.title(seen, 100, NOW).plain.startswith("demo  step 12/96  v12  1h01m elapsed  ")


def test_a_start_is_no_trouble_and_names_what_has_not_joined() -> None:
    early = changed(snapshot(), workers=[], troubles=[])
    (line,) = screen.troubles(early, 100)
    assert line.plain == "starting: the trainer, rollout workers, reward workers have not joined yet"
    assert line.style == "yellow"
    (line,) = screen.troubles(changed(early, troubles=["no trainer is here"]), 100)
    assert (line.plain, line.style) == ("waiting: no trainer is here", "bold red")
