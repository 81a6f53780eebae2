"""Lines that many processes write, and what is read of them, whatever state the files are in."""

from __future__ import annotations

import datetime
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhymed.core.errors import ConfigError, EngineError
from rhymed.core.messages import EVAL, SampleId
from rhymed.core.run.timeline import Event, Writer
from rhymed.core.service.logfile import JsonLine, LogFile, cause, configure, rotated
from rhymed.records.history.folder import open_folder
from rhymed.records.history.story import summary
from rhymed.records.logs import Entry, Filter, Follower, Formatter, Log, entries, logs, merged, since_stamp
from rhymed.start.cli import main
from tests.records.history.fixtures import in_turns, make_run, tokenizer
from tests.records.history.sessions import GOT, OPEN

__all__ = ["in_turns", "make_run", "tokenizer"]  # fixtures

SAMPLE = "3/00000000000000ab/1"
ID = SampleId(3, "00000000000000ab", 1)
UTC = datetime.UTC


def record(text: str, *values: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("rhymed.here", level, __file__, 1, text, values, None)
    made.__dict__.update(extra)
    return made


@pytest.fixture
def write(tmp_path: Path) -> Iterator[object]:
    """`write(process, second, text)`: a line of that process's log at that second."""
    files: dict[str, LogFile] = {}

    def add(process: str, second: float, text: str, **extra: object) -> None:
        file = files.setdefault(process, LogFile(tmp_path / "logs" / f"{process}.log"))
        made = record(text, **extra)
        made.created = 1_700_000_000 + second
        file.emit(made)

    yield add
    for file in files.values():
        file.close()


# Lines


def test_a_line_is_one_object_with_all_that_was_given() -> None:
    made = record("took %d\nof them", 2, **cause("taken", [ID], tokens=[7], worker="rollout-0"))
    made.created = 1_700_000_000.9876
    line = JsonLine("rollout-0", {}).format(made)
    assert "\n" not in line
    assert json.loads(line) == {
        "t": "2023-11-14T22:13:20.987Z",
        "level": "info",
        "process": "rollout-0",
        "pid": os.getpid(),
        "logger": "rhymed.here",
        "text": "took 2\nof them",
        "event": "taken",
        "worker": "rollout-0",
        "tokens": [7],
        "samples": [SAMPLE],
    }


def test_an_error_comes_with_its_traceback() -> None:
    try:
        raise EngineError("no engine")
    except EngineError as error:
        made = record("ended")
        made.exc_info = (type(error), error, error.__traceback__)
    error = json.loads(JsonLine("p", {}).format(made))["error"]
    assert (error["type"], error["message"]) == ("EngineError", "no engine")
    assert error["traceback"].startswith("Traceback")


@pytest.mark.parametrize("text", ["half a pair \ud83d", "\0\x1b[31m", "x" * 200_000, "é\u2028 line"])
def test_whatever_is_said_is_one_line_of_json(text: str) -> None:
    line = JsonLine("p", {}).encode(record("%s", text))
    assert b"\n" not in line
    assert len(line) < 100_000
    assert json.loads(line)["process"] == "p"


def test_a_call_that_does_not_fit_its_format_is_logged_all_the_same() -> None:
    assert "%d apples" in json.loads(JsonLine("p", {}).format(record("%d apples", "no")))["text"]


def test_secrets_are_not_written_down() -> None:
    form = JsonLine("p", {"HF_TOKEN": "very-secret-value", "PATH": "/usr/bin", "MY_KEY": "x"})
    said = form.hide("very-secret-value /usr/bin Bearer abc.def http://h/?token=abc123&x=1 hf_abcdEfghij x token_s=3")
    assert said == "*** /usr/bin Bearer *** http://h/?token=***&x=1 hf_*** x token_s=3"


# Files


def test_a_file_is_turned_over_and_the_oldest_goes(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log", most=2000, kept=3)
    for number in range(100):
        file.emit(record("line %d", number))
    file.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1", "a.log.2"}
    assert max(sizes.values()) < 2400
    numbers = [int(entry.text.split()[1]) for entry in entries(logs(tmp_path)[0])]
    assert numbers == list(range(numbers[0], 100))


CONSOLE = """
import logging, sys
from pathlib import Path
from rhymed.core.service.logfile import configure
configure(Path(sys.argv[1]) if sys.argv[1:] else None, console=True)
log = logging.getLogger("rhymed.some")
log.info("of the run")
log.info("of a sample", extra={"samples": []})
log.warning("of a sample gone wrong", extra={"samples": []})
"""


@pytest.mark.parametrize("to_file", [True, False])
def test_a_console_shows_what_goes_as_it_should_with_a_sample_only_where_no_file_has_it(
    tmp_path: Path, to_file: bool
) -> None:
    command = [sys.executable, "-c", CONSOLE, *([str(tmp_path / "a.log")] if to_file else [])]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    texts = [line.split(": ", 1)[1] for line in shown.splitlines()]
    assert texts == ["of the run", *([] if to_file else ["of a sample"]), "of a sample gone wrong"]
    if to_file:
        assert [entry.text for entry in entries(logs(tmp_path)[0])] == [
            "of the run",
            "of a sample",
            "of a sample gone wrong",
        ]


WRITER = """
import logging, sys
from rhymed.core.service.logfile import LogFile
file = LogFile(sys.argv[1], sys.argv[2], most=20_000, kept=40)
for number in range(400):
    file.emit(logging.LogRecord("n", 20, "f", 1, "%s line %d" % (sys.argv[2], number), (), None))
"""


def test_several_processes_write_one_file_and_no_line_is_lost_or_cut(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "shared.log")]
    writers = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    files = logs(tmp_path)[0]
    assert len(files.files) > 2
    found = list(entries(files))
    assert all(entry.raw for entry in found)
    for name in "abc":
        mine = [entry.text for entry in found if entry.process == name]
        assert sorted(mine) == sorted(f"{name} line {number}" for number in range(400))


def test_what_a_killed_writer_left_is_not_glued_to_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b'{"t":"2026-01-01T00:00:00.000Z","level":"in')
    file = LogFile(path)
    file.emit(record("whole"))
    file.close()
    assert [entry.text for entry in entries(logs(tmp_path)[0])][1:] == ["whole"]


def test_a_log_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "logs" / "a.log")
    file.emit(record("one"))
    (tmp_path / "logs" / "a.log").unlink()
    file.emit(record("two"))
    file.close()
    assert [entry.text for entry in entries(logs(tmp_path / "logs")[0])] == ["two"]


def test_lines_that_a_full_disk_costs_are_counted(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = LogFile(path)
    path.unlink()
    path.mkdir()  # no file can be opened there, as little as on a full disk
    file.emit(record("one"))
    file.emit(record("two"))
    path.rmdir()
    file.emit(record("three"))
    file.close()
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    assert texts == ["2 lines before this one could not be written", "three"]
    assert capfd.readouterr().err == ""


def test_details_are_of_this_package_alone(tmp_path: Path) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    ours = {
        name: logging.getLogger(name).level for name in ("rhymed", "rhymed_broker", "rhymed_store", "rhymed_workers")
    }
    try:
        configure(tmp_path / "a.log", "debug")
        logging.getLogger("rhymed.x").debug("ours")
        logging.getLogger("elsewhere").debug("theirs")
        configure(tmp_path / "b.log", "warning")
        logging.getLogger("rhymed.x").info("not wanted")
    finally:
        logging.basicConfig(handlers=before, level=level, force=True)
        for name, value in ours.items():
            logging.getLogger(name).setLevel(value)
    assert [entry.text for entry in merged(logs(tmp_path))] == ["ours"]


# Reading


def test_lines_of_all_processes_come_by_time(write: object, tmp_path: Path) -> None:
    write("broker", 1, "first")
    write("rollout-0", 2, "second")
    write("broker", 3, "third")
    assert [entry.text for entry in merged(logs(tmp_path / "logs"))] == ["first", "second", "third"]


FOREIGN = """2026-01-31 10:00:00,250 WARNING vllm: slow
  more of it
\x00\x00\xff\xfe rubbish
Traceback (most recent call last):
  File "x.py", line 1
ValueError: no
INFO 01-31 10:00:01 [core.py:1] fine
"""


def test_foreign_lines_are_text_of_the_time_before_them(tmp_path: Path) -> None:
    (tmp_path / "engine.out").write_text(FOREIGN, errors="surrogateescape", encoding="latin-1")
    found = list(entries(logs(tmp_path)[0]))
    local = datetime.datetime(2026, 1, 31, 10).astimezone(UTC)
    assert {entry.t for entry in found} == {f"{local:%Y-%m-%dT%H:%M:%S}.250Z"}
    assert [entry.level for entry in found] == [*["warning"] * 3, *["error"] * 3, "info"]
    assert found[1].text == "  more of it"
    assert found[-1].process == "engine"


def test_a_cut_line_does_not_swallow_the_one_behind_it(tmp_path: Path) -> None:
    whole = JsonLine("a", {}).encode(record("whole"))
    (tmp_path / "a.log").write_bytes(whole[:40] + whole + b"\n" + b"\xff" * 30 + whole + b"\n" + whole[:-20])
    found = list(entries(logs(tmp_path)[0]))
    assert [entry.text for entry in found if entry.raw] == ["whole", "whole"]
    assert len(found) == 5


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed.records.logs.LONGEST", 4096)
    with LogFile(tmp_path / "a.log").path.open("w") as file:
        for second in range(20_000):
            file.write(f'{{"t":"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.000Z"}}\n')
    with (tmp_path / "a.log").open("rb") as opened:
        from rhymed.records.logs import seek

        seek(opened, "2026-01-01T05:30:00.000Z")
        assert opened.tell() > 0.95 * (tmp_path / "a.log").stat().st_size
    found = list(entries(logs(tmp_path)[0], since="2026-01-01T05:30:00.000Z"))
    assert len(found) == 20_000 - 5 * 3600 - 30 * 60


def test_a_line_without_an_end_is_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed.records.logs.LONGEST", 1000)
    (tmp_path / "a.log").write_bytes(b"x" * 10_500)
    assert [len(entry.text) for entry in entries(logs(tmp_path)[0])] == [1000] * 10 + [500]


def test_a_follower_sees_what_comes_across_turns_and_new_files(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log", most=600, kept=5)
    file.emit(record("before"))
    follower = Follower(tmp_path)
    assert follower.poll() == []
    shown = []
    for number in range(20):
        file.emit(record("line %d", number))
        shown += [entry.text for entry in follower.poll()]
    file.close()
    other = LogFile(tmp_path / "b.log")
    other.emit(record("new file"))
    with other.path.open("ab") as half:
        half.write(b'{"t":"2')
    shown += [entry.text for entry in follower.poll()]
    with other.path.open("ab") as half:
        half.write(b'026-01-01T00:00:00.000Z","text":"late half"}\n')
    shown += [entry.text for entry in follower.poll()]
    other.close()
    assert shown == [f"line {number}" for number in range(20)] + ["new file", "late half"]
    assert rotated(tmp_path / "a.log", 2).exists()


def test_what_is_read_and_what_is_followed_meet_without_a_gap_or_an_overlap(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log")
    file.emit(record("before"))
    with file.path.open("ab") as half:
        half.write(b'{"t":"2026-01-01T00:00:00.000Z","te')
    follower = Follower(tmp_path)
    with file.path.open("ab") as half:
        half.write(b'xt":"half of it before"}\n')
    file.emit(record("after"))
    file.close()
    assert [entry.text for entry in merged(logs(tmp_path), ends=follower.begins)] == ["before"]
    assert [entry.text for entry in follower.poll()] == ["half of it before", "after"]


# Choosing and showing


@pytest.mark.parametrize(
    ("pick", "texts"),
    [
        (Filter(), ["a", "b", f"sample {SAMPLE} x", f"sample {SAMPLE}0", "step 4: done"]),
        (Filter(level="warning"), ["b"]),
        (Filter(process="roll*"), ["b"]),
        (Filter(sample=SAMPLE), ["b", f"sample {SAMPLE} x"]),
    ],
)
def test_what_is_wanted(pick: Filter, texts: list[str]) -> None:
    given = [
        Entry(text="a", process="broker", step=13),
        Entry(text="b", process="rollout-0", level="warning", samples=["4/00000000000000ab/1", SAMPLE]),
        Entry(text=f"sample {SAMPLE} x", process="broker"),
        Entry(text=f"sample {SAMPLE}0", process="broker"),
        Entry(text="step 4: done", process="trainer"),
    ]
    assert [entry.text for entry in given if pick.matches(entry)] == texts


def test_since_is_an_age_or_a_time() -> None:
    now = datetime.datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert since_stamp("10m", now) == "2026-01-31T11:50:00.000Z"
    assert since_stamp("1.5h", now) == "2026-01-31T10:30:00.000Z"
    assert since_stamp("2026-01-31T14:05:00+02:00", now) == "2026-01-31T12:05:00.000Z"
    with pytest.raises(ConfigError, match="write 30s, 10m"):
        since_stamp("yesterday", now)


def test_a_page_has_a_day_a_time_and_no_control_characters() -> None:
    page = Formatter(colours=False, zone=UTC)
    first = Entry(t="2026-01-31T23:59:59.900Z", process="broker", text="fine")
    second = Entry(t="2026-02-01T00:00:00.100Z", process="rollout-0", level="error", text="bad\x1b[2J\nmore")
    assert page.line(first) == "-- 2026-01-31\n23:59:59.900 broker      fine\n"
    assert page.line(second) == ("-- 2026-02-01\n00:00:00.100 rollout-0   ERROR bad\ufffd[2J\n             more\n")
    assert Formatter(colours=True, zone=UTC).line(second).count("\033[31m") == 1


# The command


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["logs", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_sample_has_a_story_though_there_is_no_store(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("rollout-0", 1, "takes 2 samples", **cause("taken", ["3/00000000000000ab/0", ID]))
    write("rollout-0", 5, "stored", **cause("stored", ["3/00000000000000ab/0", ID], tokens=[5, 9], accepted=[0, 4]))
    write("reward-0", 7, "1 sample scored", **cause("scored", [ID], rewards=[0.25]))
    write("trainer", 9, "step 3: loss=0", **cause("trained", [ID], step=3))
    write("trainer", 9, "step 4: loss=0", **cause("trained", ["4/00000000000000ab/1"], step=4))
    status, out, _ = run(capsys, tmp_path, "--sample", "3/00/1")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"sample {SAMPLE}, of step 4", "people count from 1, ids from 0"
    assert "has no store in it" in lines[1]
    assert [line.partition(" ")[2] for line in lines[3:]] == [
        "rollout-0   takes it, with 1 other",
        "rollout-0   written and stored: 9 tokens, 4 of them drafts",
        "reward-0    scored: 0.25",
        "trainer     trained in step 4",
    ]
    status, _, err = run(capsys, tmp_path, "--sample", "00000000000000ab")
    assert status != 0
    assert f"3 samples match; name one: 3/00000000000000ab/0, {SAMPLE}" in err


def test_a_sample_in_turns_has_its_turns_answers_and_calls(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sibling = "3/00000000000000ab/0"
    write("environment-0", 1, "takes 2 samples", **cause("acting", [sibling, ID]))
    write("environment-0", 2, "answer 0", **cause("answered", [ID], turns=[0], tokens=[410], calls=[[]]))
    both = cause("turned", [sibling, ID], turns=[2, 0], tokens=[5, 9], accepted=[0, 4])
    write("rollout-0", 3, "generated and stored 2 turns", **both)
    write("environment-1", 4, "made again", **cause("rebuilt", [ID], turns=[1]))
    calls = [["add 4.0 ms", "divide 1 s, failed: division by zero"]]
    write("environment-1", 5, "answer 1", **cause("answered", [ID], turns=[1], tokens=[12], calls=calls))
    write("environment-1", 6, "it is complete", **cause("stored", [ID], turns=[2], tokens=[30]))
    _, out, _ = run(capsys, tmp_path, "--sample", SAMPLE)
    assert [line.split(maxsplit=1)[1] for line in out.splitlines()[3:]] == [
        "environment-0 takes it to be answered, with 1 other",
        "environment-0 its prompt written: 410 tokens",
        "rollout-0   turn 1 written and stored: 9 tokens, 4 of them drafts",
        "environment-1 its environment is made again: 1 turn repeated",
        "environment-1 turn 1 answered: 12 tokens after add 4.0 ms; divide 1 s, failed: division by zero",
        "environment-1 complete: 30 tokens in 2 turns",
    ]


def test_a_sample_has_the_turns_that_the_store_has(in_turns: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_turns / "logs").mkdir()
    (in_turns / "logs" / "broker.log").write_text("")
    _, out, _ = run(capsys, in_turns, "--sample", str(GOT))
    assert out.splitlines()[4:8] == [
        "  turns    2 turns, 1 call, 2 of its tokens from its environment",
        "           turn 1, 4 tokens",
        "           environment, 2 tokens: add 4.0 ms",
        "           turn 2, 3 tokens",
    ]
    with open_folder(in_turns) as folder:
        assert folder.browse.in_progress() == [OPEN]
    assert summary(in_turns, str(OPEN))[2:] == ["  the store has no finished response of it"]


def test_an_evaluation_is_of_its_own_samples_alone(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The samples of the step of that number have nothing to do with it."""
    exam = f"{EVAL + 3}/00000000000000ab/1"
    write("rollout-0", 1, "takes 2 samples", **cause("taken", [SAMPLE, exam]))
    write("trainer", 2, "trains", **cause("trained", [SAMPLE]))
    for sample, lines in ((SAMPLE, 2), (exam, 1)):
        _, out, _ = run(capsys, tmp_path, "--sample", sample)
        assert str(EVAL + 3) not in out
        assert len([line for line in out.splitlines() if line[:2].isdecimal()]) == lines


def test_an_evaluations_sample_is_written_and_found_by_its_version(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exam = f"{EVAL + 3}/00000000000000ab/1"
    write("rollout-0", 1, f"takes 1 sample, first {exam}", **cause("taken", [exam]))
    _, out, _ = run(capsys, tmp_path)
    assert out.endswith("takes 1 sample, first eval-v3/00000000000000ab/1\n")
    assert exam in run(capsys, tmp_path, "--json")[1]  # for programs as written
    for name in ("eval-v3/00000000000000ab/1", "eval v3/0000", exam):
        _, out, _ = run(capsys, tmp_path, "--sample", name)
        assert out.startswith("sample eval-v3/00000000000000ab/1, of the evaluation of version 3")
    assert "have such a sample" in run(capsys, tmp_path, "--sample", "eval-v4/00000000000000ab/1")[2]


def test_the_command_filters_and_names_what_is_not_there(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("broker", 1, "one")
    write("rollout-0", 2, "two", levelno=30, levelname="WARNING")
    assert run(capsys, tmp_path, "--level", "warning")[1].endswith("rollout-0   WARNING two\n")
    assert json.loads(run(capsys, tmp_path, "--process", "broker", "--json")[1])["text"] == "one"
    assert "no matching line; the last one was written" in run(capsys, tmp_path, "--since", "1s")[2]
    assert "the run has broker, rollout-0" in run(capsys, tmp_path, "--process", "trainer")[2]
    assert "gone does not exist: name a run's folder" in run(capsys, tmp_path / "gone")[2]
    assert "gone does not exist" in run(capsys, tmp_path / "gone")[2]
    (tmp_path / "bare").mkdir()
    assert "bare/logs has no logs" in run(capsys, tmp_path / "bare")[2]


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ("3/ffffffffffffffff/0", "have such a sample"),
        ("3/00000000000000ab/99", "have such a sample"),
        ("4/00000000000000ab/1", "have such a sample"),
        ("what?", "is not a sample's id"),
        ("", "'' is not a sample's id"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_sample_that_is_in_no_line_is_a_mistake(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: str, complaint: str, more: tuple[str]
) -> None:
    """Though its prompt, or its step, is known."""
    write("rollout-0", 1, "takes 1 sample", **cause("taken", [ID]))
    writer = Writer(tmp_path)
    writer.write([Event(t=1_700_000_002, event="trained", step=step) for step in (3, 4)])
    writer.close()
    status, out, err = run(capsys, tmp_path, "--sample", wanted, *more)
    assert (status, out) == (2, "")
    assert complaint in err
    assert "steps in ids count from 0; ids are in the report" in err
    assert run(capsys, tmp_path, "--sample", SAMPLE, *more)[0] == 0, "one that has only a line"


def test_logs_that_lie_elsewhere_are_read_too(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("broker", 1, "one")
    write("rollout-0", 3, "three")
    elsewhere = tmp_path / "elsewhere" / tmp_path.name
    for name, second, text in (("reward-0", 2, "two"), ("rollout-0", 4, "another's")):
        file = LogFile(elsewhere / "logs" / f"{name}.log")
        made = record(text)
        made.created = 1_700_000_000 + second
        file.emit(made)
        file.close()
    status, out, _ = run(capsys, tmp_path, "--also", elsewhere)
    assert (status, [line.split()[-1] for line in out.splitlines()[-4:]]) == (0, ["one", "two", "three", "another's"])
    assert "it contains no folder logs" in run(capsys, tmp_path, "--also", tmp_path / "gone")[2]
    monkeypatch.setenv("RHYMED_FURTHER_RUNS", str(elsewhere.parent))
    assert run(capsys, tmp_path)[1] == out


def test_links_among_logs_are_not_followed_and_nothing_steers_the_terminal(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may write them may be somebody who must not read what a link leads to."""
    write("broker", 1, "one")
    (tmp_path / "secret").write_text("the key\n")
    for name in ("x.out", "y.log"):
        (tmp_path / "logs" / name).symlink_to(tmp_path / "secret")
    hostile = {"t": "2026-01-01T00:00:00+00:00", "process": "a\x1b[2Jb", "level": "l\x1b]0;x", "text": "t"}
    hostile |= {"error": {"type": "E\x1b[1m", "message": "m"}}
    (tmp_path / "logs" / "z.log").write_text(json.dumps(hostile) + "\n")
    status, out, _ = run(capsys, tmp_path)
    assert status == 0
    assert "the key" not in out
    assert "\x1b" not in out


def test_a_sample_that_only_another_host_has_logged_is_found_there(
    write: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("rollout-0", 1, "takes 1 sample", **cause("taken", [ID]))
    here = tmp_path / "here"
    (here / "logs").mkdir(parents=True)
    (here / "logs" / "broker.log").touch()
    assert run(capsys, here, "--sample", SAMPLE)[0] == 2
    status, out, _ = run(capsys, here, "--sample", SAMPLE, "--also", tmp_path)
    assert (status, "takes it" in out) == (0, True)
    assert run(capsys, here, "--also", tmp_path, "--also", f"{tmp_path}/.")[1].count("takes 1 sample") == 1


def test_an_empty_log_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    (tmp_path / "a.log.1").touch()
    (tmp_path / "b.out").touch()
    assert [Log(log.process, [], log.foreign) for log in logs(tmp_path)] == [Log("a", [], False), Log("b", [], True)]
    assert list(merged(logs(tmp_path))) == []
