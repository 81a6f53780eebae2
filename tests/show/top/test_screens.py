"""What the screen looks like: text files next to this one, and what must hold at any size."""

from __future__ import annotations

import msgspec
import pytest
from rich.text import Text

from rhymed.core.messages import Drain, Group, GroupRow, Holding, Pause, Queues, SampleId, StepRow
from rhymed.core.run.timeline import Times
from rhymed.core.style import parts
from rhymed.core.text import age
from rhymed.show.top import screen, steps
from rhymed.show.top import table as words
from rhymed.show.top.screen import paint
from rhymed.show.top.state import Connection, Question, UiState
from rhymed.show.top.table import Column, draw, fit, scroll
from tests.show.top.sample_run import NOW, group, make_ui, rollout, same, snapshot, with_environments


def plain(seen: UiState, width: int, height: int, now: float = NOW) -> list[str]:
    return [line.plain for line in paint(seen, width, height, now).lines]


def changed(seen: Queues, /, **fields: object) -> Queues:
    return msgspec.structs.replace(seen, **fields)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (40, 12), (10, 16)])
def test_the_whole_screen(width: int, height: int) -> None:
    same(f"workers-{width}x{height}", plain(make_ui(), width, height))


def test_paused_and_in_trouble() -> None:
    troubles = ["paused by an operator for 12 s", "no reward worker is here", "and another", "one more"]
    workers = [rollout(0, drained=True), rollout(1, silent_s=9.0), rollout(2, stats={})]
    queues = changed(snapshot(), paused=True, troubles=troubles, workers=workers)
    same("paused-100x30", plain(make_ui(queues), 100, 30))


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
    seen = make_ui()
    seen.connection = Connection(state, NOW)
    first, *rest = plain(seen, 80, 24, NOW + 65)
    assert first.endswith(reported)
    assert rest == plain(make_ui(), 80, 24)[1:]


def test_before_the_first_answer() -> None:
    seen = UiState(connection=Connection("waiting", NOW, "ipc:///nowhere"))
    lines = plain(seen, 60, 6, NOW + 3)
    assert "asking the broker, 3.0s" in lines[0]
    assert "no worker has joined" in lines[3]


def test_groups_a_worker_and_a_sample() -> None:
    seen = make_ui(view="groups")
    same("groups-100x30", plain(seen, 100, 30))
    seen.view, seen.worker = "worker", "rollout-2"
    seen.queues = snapshot(
        workers=3, metrics={},
    )  # fmt: skip
    same("worker-100x30", plain(seen, 100, 30))
    seen.view, seen.group, seen.prompt = "group", group(), (12, f"{1:016x}")
    seen.selected["group"] = "0"
    same("group-100x30", plain(seen, 100, 30))


def test_samples_that_their_environment_answers() -> None:
    seen = make_ui(with_environments())
    same("environments-100x30", plain(seen, 100, 30))
    seen.view = "groups"
    same("environments-groups-120x20", plain(seen, 120, 20))
    seen.view, seen.worker = "worker", "environment-0"
    same("environments-worker-100x20", plain(seen, 100, 20))


def test_what_is_gone_is_said() -> None:
    seen = make_ui(view="worker", worker="rollout-77")
    assert "rollout-77 is not connected" in "\n".join(plain(seen, 100, 30))
    seen = make_ui(view="group", prompt=(3, "abc"))
    assert "asking the broker" in "\n".join(plain(seen, 100, 30))
    seen.group, seen.step_done = Group(step=3, prompt="abc", members=[]), True
    shown = plain(seen, 100, 30)
    assert "the step is no longer open" in "\n".join(shown)
    assert "  rhymed logs --sample 3/abc/0" in shown


def test_of_a_group_whose_step_is_done_the_last_picture_stays() -> None:
    seen = make_ui(view="group", group=group(), prompt=(12, f"{1:016x}"), step_done=True)
    seen.selected["group"] = "1"
    same("past-100x30", plain(seen, 100, 30))
    lines = {line.plain.strip(): line for line in paint(seen, 100, 30, NOW).lines}
    reported = next(line for text, line in lines.items() if text.startswith("the step is done"))
    row = next(line for text, line in lines.items() if text.startswith("2 running"))
    assert "dim" in {str(span.style) for span in row.spans if span.end - span.start == len(row)}
    assert "dim" not in {str(span.style) for span in reported.spans}


def test_questions_and_keys_stand_over_the_screen() -> None:
    seen = make_ui()
    seen.question = Question(("Pause the run?", "64 samples …"), Pause(paused=True))
    same("question-80x24", plain(seen, 80, 24))
    seen.question, seen.help_shown = None, True
    same("help-80x24", plain(seen, 80, 24))


def test_at_any_size_the_screen_is_exactly_full() -> None:
    """Down to one cell; with every view, and a box over it."""
    seen = make_ui(group=group(), prompt=(12, "x"), worker="rollout-2")
    seen.question = Question(("Drain?",), Drain(worker="rollout-2", drained=True))
    for view in ("workers", "groups", "worker", "group"):
        seen.view = view
        for width in (1, 2, 3, 10, 13, 25, 60, 99, 130):
            for height in (1, 2, 3, 4, 8, 23, 50):
                frame = paint(seen, width, height, NOW)
                assert len(frame.lines) == len(frame.names) == height
                assert all(line.cell_len <= width for line in frame.lines), (view, width, height)


def test_names_from_others_cannot_move_the_cursor_or_change_colours() -> None:
    rows = [
        rollout(0, worker="rollout-\x1b[31m\n", host="[red]h", phase="\x07decode\r"),
        rollout(1, worker="rollout-漢字漢字漢字漢字漢字漢字漢字", host="ホスト"),
    ]
    lines = plain(make_ui(changed(snapshot(), workers=rows)), 130, 24)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]h" in text
    assert "rollout-\\x1b[31m\\n" in text


def test_infinite_and_missing_numbers_are_drawn() -> None:
    metrics = {"reward/mean": float("nan"), "response_length/mean": float("inf"), "staleness/mean": float("nan")}
    queues = changed(snapshot(), metrics=metrics, steps=0, step=0, queues={}, oldest_s={}, open_steps=[], workers=[])
    assert len(plain(make_ui(queues), 80, 24)) == 24


def test_a_crowd_shows_the_part_that_is_selected() -> None:
    queues = changed(snapshot(), workers=[rollout(number) for number in range(256)])
    seen = make_ui(queues)
    seen.selected["workers"] = "rollout-200"
    lines = plain(seen, 100, 30)
    assert any("rollout-200" in line for line in lines)
    assert any("of 256" in line for line in lines)


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
    line = steps.step_line(row, 12, 140).plain
    assert "6/8 groups, 2 replaced" in line
    assert "8 filtered" in line
    assert "---" in line
    full = {**snapshot().queues, "filtered": 0}
    assert "filtered" not in "".join(text.plain for text in screen.depths(changed(snapshot(), queues=full), 200))
    full["filtered"] = 8
    assert "filtered" in "".join(text.plain for text in screen.depths(changed(snapshot(), queues=full), 200))


def test_a_group_has_a_cell_a_sample() -> None:
    row = GroupRow(prompt="abc", waiting=1, running=2, written=1, settled=4)
    assert steps.group_bar(row, 12).plain == "████▓▒▒·"
    wide = GroupRow(prompt="abc", waiting=20, running=20, written=20, settled=20)
    assert steps.group_bar(wide, 12).plain == "███▓▓▓▒▒▒···"


def test_the_group_lines_say_how_many_more_there_are() -> None:
    rows = [GroupRow(prompt=f"{number:04}", waiting=8, running=0, written=0, settled=0) for number in range(96)]
    step = StepRow(step=12, states={"waiting": 800}, groups_ready=0, groups=4096, open_s=1, rows=rows)
    head, *lines = steps.group_lines(changed(snapshot(), open_steps=[step]), 100, 4)
    assert "and 4,081 more" in head.plain
    assert len(lines) == 3


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


@pytest.mark.parametrize(
    ("first", "selected", "height", "total", "expected"),
    [(0, 0, 5, 3, 0), (0, 9, 5, 10, 5), (8, 2, 5, 10, 2), (9, -1, 5, 10, 5), (3, 0, 0, 0, 0)],
)
def test_the_selected_row_is_in_sight(first: int, selected: int, height: int, total: int, expected: int) -> None:
    assert scroll(first, selected, height, total) == expected


def test_only_rows_in_sight_are_made() -> None:
    made = []
    columns = (Column("n", 5, lambda row: (made.append(row) or str(row), "")),)
    window = draw(range(100_000), columns, width=20, height=6, selected=70_000)
    assert len(made) == 5
    assert 70_000 in window.rows


def test_a_box_may_be_larger_than_the_screen() -> None:
    lines = screen.over([Text("ab"), Text("漢字")], screen.help_box(), 4)
    assert len(lines) == 2


def test_samples_of_a_worker_are_reported_by_who_has_them_longest() -> None:
    held = [Holding(id=SampleId(1, "p", index), seconds=float(index)) for index in range(3)]
    queues = changed(snapshot(), workers=[rollout(0, holding=held)])
    text = [line.split() for line in plain(make_ui(queues, view="worker", worker="rollout-0"), 80, 24)]
    assert [row[2] for row in text if row[:2] == ["2", "p"]] == ["3", "2", "1"]


def test_the_title_has_elapsed_and_remaining_time_as_far_as_there_is_room() -> None:
    ui = make_ui()
    ui.times = Times(3700.0, 750.0)
    assert screen.title(ui, 100, NOW).plain.startswith("demo  step 12/96  v12  1h01m elapsed, about 12 min left")
    assert screen.title(ui, 48, NOW).plain.startswith("demo  step 12/96  1h01m  12 min left")
    assert screen.title(ui, 24, NOW).plain.startswith("demo 12/96")
    ui.times = Times(3700.0, None)  # before the second step
    assert screen.title(ui, 100, NOW).plain.startswith("demo  step 12/96  v12  1h01m elapsed  ")


def test_a_start_is_no_trouble_and_names_what_has_not_joined() -> None:
    early = changed(snapshot(), workers=[], troubles=[])
    (line,) = screen.troubles(early, 100, 2)
    assert line.plain == "starting: the trainer, rollout workers, reward workers have not joined yet"
    assert line.style == "yellow"
    (line,) = screen.troubles(changed(early, troubles=["no trainer is here"]), 100, 2)
    assert (line.plain, line.style) == ("waiting: no trainer is here", "bold red")
