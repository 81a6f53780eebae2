"""The report of a run: what is in it, whatever is in the folder, and that nothing in it is more than text."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from rhymed.cli import main
from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.launch import session
from rhymed.messages import EVAL, SampleId
from rhymed.report import html
from rhymed.report.page import HEAD, TAIL, TOO_LARGE, _cut, _pieces
from rhymed.report.write import write
from rhymed.run import folder as runs
from rhymed.run import provenance
from rhymed.run.layout import layout_of
from rhymed.run.timeline import Event, Span, Writer
from tests.history.folders import APPLES, PEARS

Made = Callable[..., Path]


class Found(HTMLParser):
    """Elements, the text of each kind, and every address."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.kinds: set[str] = set()
        self.addresses: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.kinds.add(tag)
        self._open.append(tag)
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")
        ]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def has(self, text: str) -> bool:
        return any(text in one for texts in self.texts.values() for one in texts)


def metrics(folder: Path, steps: int = 6) -> None:
    rows = [
        {
            "step": step, "training/epoch": step // 3, "reward/mean": step / 10, "timing_s/step": 2.0,
            "timing_s/rollout": 1.5, "timing_s/train": 0.4, "rollout/tokens": 100.0, "rollout/tokens_per_s": 70.0,
            "rollout/dropped": 0.0,
            "response_length/mean": 12.0, "rollout/bubble_ratio": 0.25, "staleness/mean": 0.0, "staleness/max": 1.0,
            "rollout/spec_forwards": 10.0, "rollout/spec_drafted": 20.0, "rollout/spec_accepted": 15.0,
            "rollout/spec_timed_s": 2.0, "rollout/spec_saved_s": 1.0, "rollout/spec_draft_s": 0.1,
            "rollout/spec_accept_rate": 0.75, "rollout/spec_accept_length": 2.5, "rollout/spec_net_speedup": 1.5,
        }
        for step in range(steps)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def diary(folder: Path, *events: Event) -> None:
    spans = [
        Span(t=100.0 + at, worker="rollout-0", role="rollout", s=1.0, inside={"decode": 1.0}) for at in range(20)
    ]
    writer = Writer(folder)
    writer.write([*spans, *events])
    writer.close()


# The whole page


def test_a_run_is_told_on_one_page_with_its_pictures_beside_it(run: Path) -> None:
    metrics(run)
    lost = Event(t=110.0, event="lost", worker="rollout-0", text="silent for 3 s")
    back = Event(t=112.0, event="joined", worker="rollout-0")
    end = [Event(t=119.0, event="finished"), Event(t=119.5, event="left", worker="rollout-0")]
    again = Event(t=114.0, event="joined", worker="rollout-0")
    diary(run, Event(t=99.0, event="begun", step=0), lost, back, again, *end)
    provenance.note(run, provenance.now(["run", "my file.toml"], Config()))
    page = write(run)
    assert page == run / "report.html"
    found = Found(page)
    pictures = {"reward", "length", "acceptance", "gain", "bubble", "staleness", "seconds", "store", "gantt"}
    assert {file.stem for file in (run / "report").glob("*.png")} == pictures
    assert len(found.addresses) == len(pictures)
    assert all(address.startswith("data:image/png;base64,") for address in found.addresses)
    assert "script" not in found.kinds
    assert found.has("finished, 6 steps")
    assert {"0.100 → 0.400", "75%", "1.50x", "25%"} <= {*found.texts["b"]}
    lost, back = ["0:11", "rollout-0", "lost", "silent for 3 s"], ["0:13", "rollout-0", "came back"]
    again = ["0:15", "rollout-0", "started again"]
    assert found.texts["td"][:11] == [*lost, *back, *again, "model.path"]
    assert found.has("rhymed run 'my file.toml'")
    assert found.has(f"rhymed history audit {run}")
    assert found.has(f"rhymed run {run / 'config.json'} -o run.folder=runs")
    assert not found.has("pip install")
    assert found.has("how many apples are there?")
    assert found.has("right answer: 7")
    assert list(run.glob(".report*")) == []


def test_every_setting_of_a_dataset_that_was_chosen_has_a_row(run: Path) -> None:
    held = {"name": "sums", "source": "reasoning_gym", "task": "chain_sum", "args": {"min_terms": 2}, "size": 64}
    config = Config.model_validate({"eval": {"datasets": [held]}, "rollout": {"prompts_per_step": 4}})
    (run / "config.json").write_text(config.model_dump_json())
    page = write(run)
    found = Found(page)
    cells = found.texts["td"][found.texts["td"].index("rollout.prompts_per_step") :]
    pairs = dict(zip(cells[::2], cells[1::2], strict=False))
    assert pairs["eval.datasets[sums].args.min_terms"] == "2"
    assert "eval.datasets[sums].revision" not in cells[: cells.index("rollout.prompts_per_step", 1)], "a default"
    assert '<table class="settings">' in page.read_text()
    assert ".settings td:first-child { white-space: nowrap" in page.read_text()


def test_advice_names_the_fault_and_the_cure(run: Path) -> None:
    metrics(run)
    rows = [
        json.loads(line) | {"reward/flat_groups": 1.0} for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = Found(write(run))
    assert "Advice" in found.texts["h2"]
    assert any("100% of the groups" in text for text in found.texts["strong"])
    assert found.has("raise rollout.group_size")


def test_a_run_that_died_early_tells_after_how_long(run: Path) -> None:
    writer = Writer(run)
    joined = Event(t=1e9, event="joined", worker="rollout-0")
    writer.write([joined, Event(t=1e9 + 7, event="lost", worker="rollout-0", text="silent for 3 s")])
    writer.close()
    assert Found(write(run)).texts["td"][:2] == ["0:07", "rollout-0"]


@pytest.mark.usefixtures("plain")
def test_the_time_of_a_run_that_went_on_is_that_of_all_its_parts(run: Path) -> None:
    """`summary.json` is of the parts that came to their end; of what is behind it the timeline tells."""
    metrics(run)
    diary(run)
    (run / "summary.json").write_text('{"elapsed_s": 90.0}')
    os.utime(run / "summary.json", (109.5, 109.5))
    assert "99 s" in Found(write(run)).texts["b"], "90 of the first part, and from 110 to 119"
    os.utime(run / "summary.json", (119.0, 119.0))
    assert "90 s" in Found(write(run)).texts["b"]
    (run / "summary.json").unlink()
    assert "19 s" in Found(write(run)).texts["b"]


HOSTILE = '<script>alert(1)</script><img src=x onerror="x()">&amp;\u202e</pre></article>\x1b[31m'


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib is not installed; and a report is made in no time."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.mark.usefixtures("plain")
def test_no_text_becomes_markup(make_run: Made) -> None:
    tokens = [ord(c) - 31 for c in "<script>alert(1)</script></pre>&lt;" if 33 <= ord(c) <= 126]
    run = make_run("bad", [(0, APPLES, 0, [token - 1 + 1 for token in tokens], 0.5), (0, APPLES, 1, tokens[:9], 0.0)])
    config = json.loads((run / "config.json").read_text())
    config["run"]["name"] = HOSTILE
    config["data"]["system"] = HOSTILE
    config[HOSTILE] = {HOSTILE: [HOSTILE]}
    (run / "config.json").write_text(json.dumps(config))
    metrics(run)
    diary(run, Event(t=101.0, event="lost", worker=HOSTILE, text=HOSTILE))
    hostile = provenance.now(["run", HOSTILE], Config())
    hostile = msgspec.structs.replace(hostile, commit=HOSTILE, versions={HOSTILE: HOSTILE}, files={HOSTILE: HOSTILE})
    provenance.note(run, hostile)
    found = Found(write(run))
    assert not found.kinds & {"script", "img", "iframe", "a"}
    assert found.addresses == []
    assert found.has("<script>alert(1)</script>")
    text = (run / "report.html").read_text()
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text


@pytest.mark.usefixtures("plain")
def test_a_page_is_the_same_each_time(run: Path) -> None:
    metrics(run)
    first = write(run).read_text()
    assert write(run).read_text() == first


# Runs of all kinds


@pytest.mark.usefixtures("plain")
def test_a_crashed_run_is_told_as_far_as_it_is_there(make_run: Made) -> None:
    run = make_run("crashed", dropped=[SampleId(0, APPLES, 0)])
    metrics(run, 2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{}\n{"step": "x"}\n\x00\xff\n{"step": 2, "rewa')
    (run / "config.json").write_text('{"run": {"na')
    (run / "starts.jsonl").write_bytes(b'{"t": 1.0}\n\xff\xfe\n{"t')
    (run / "timeline.jsonl").write_bytes(b"\x00" * 100)
    found = Found(write(run))
    assert found.has("stopped, 2 steps")
    assert found.has("There is no config.json that can be read.")
    assert found.has("The first of 1 that were generated and then dropped")
    assert found.has("dropped: scorer timed out")


@pytest.mark.usefixtures("plain")
def test_steps_whose_metrics_are_gone_are_told(run: Path) -> None:
    trained = [Event(t=110.0 + step, event="trained", step=step) for step in range(6)]
    diary(run, Event(t=99.0, event="begun", step=0), *trained, Event(t=119.0, event="finished"))
    found = Found(write(run))
    assert found.has("There is no metrics.jsonl: the timeline has 6 trained steps")
    assert found.has("finished, 6 steps")
    (run / "metrics.jsonl").touch()
    assert Found(write(run)).has("metrics.jsonl has no steps: the timeline has 6 trained steps")
    metrics(run, 4)
    lacks = "metrics.jsonl lacks 2 steps that the timeline has as trained, starting with step 5"
    assert Found(write(run)).has(lacks)
    metrics(run)
    assert not Found(write(run)).has("metrics.jsonl lacks")


@pytest.mark.usefixtures("plain")
def test_the_newest_step_of_a_run_that_goes_on_may_have_no_metrics_yet(run: Path) -> None:
    diary(run, *(Event(t=110.0 + step, event="trained", step=step) for step in range(4)))
    metrics(run, 3)
    with runs.hold(layout_of(Config.model_validate_json((run / "config.json").read_text()))):
        assert not Found(write(run)).has("metrics.jsonl lacks")
        metrics(run, 2)
        assert Found(write(run)).has("metrics.jsonl lacks 1 step that")


@pytest.mark.usefixtures("plain")
def test_samples_are_of_a_step_from_1_beside_their_id(run: Path) -> None:
    found = Found(write(run))
    assert len(found.texts["code"]) == 8
    text = (run / "report.html").read_text()
    for id in found.texts["code"]:
        assert f"<code>{id}</code> " in text
        assert text.partition(f"<code>{id}</code>")[2].partition("</p>")[0].endswith(f"of step {int(id[0]) + 1}")


@pytest.mark.usefixtures("plain")
def test_how_to_come_by_the_code_and_the_files(run: Path) -> None:
    first = provenance.now(["run", "a.toml"], Config())
    commit = "0123456789abcdef" * 2
    for kept in (
        msgspec.structs.replace(first, commit=commit, changed=True, files={"rows.jsonl": "aa" * 32, "big": ""}),
        msgspec.structs.replace(first, commit="fedcba9876543210" * 2, changed=False, files={"rows.jsonl": "bb" * 32}),
    ):
        provenance.note(run, kept)
    found = Found(write(run))
    assert found.has(f", at {commit[:12]}, changed"), "each start with its own"
    assert found.has("git checkout fedcba9876543210"), "the last one"
    assert not found.has("without its uncommitted changes"), "of the first"
    assert found.has("The same code, in a clone of rhymed. Its")
    assert found.texts["td"][-6:] == ["rows.jsonl", "aa" * 32, "big", TOO_LARGE, "rows.jsonl", "bb" * 32]
    provenance.note(run, msgspec.structs.replace(first, commit="", changed=False))
    found = Found(write(run))
    assert found.has("The commit is not known")
    assert not found.has("git checkout")


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(Config().model_dump_json())
    found = Found(write(tmp_path))
    assert found.has("no step trained")
    assert found.has("There is nothing to draw")
    assert found.has("has no store in it")
    assert found.addresses == []


def test_a_run_that_only_evaluates_shows_what_it_found(make_run: Made) -> None:
    run = make_run("exam", [(EVAL, APPLES, 0, [50, 51, 52], 1.0), (EVAL, PEARS, 0, [50, 51], 0.0)])
    (run / "metrics.jsonl").write_text('{"step": 0, "val/sums/acc/mean@1": 0.5, "val/sums/prompts": 2.0}\n')
    found = Found(write(run))
    assert found.has("sums/acc/mean@1")
    assert found.has("evaluation of version 0")
    assert len(found.addresses) == 1


def test_a_folder_that_is_no_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "gone")]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("plain")
def test_it_may_be_written_elsewhere(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics(run)
    assert main(["report", str(run), "--out", str(tmp_path / "there")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "there" / "report.html")
    assert not (run / "report.html").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written there"):
        write(run, tmp_path / "file")


@pytest.mark.usefixtures("plain")
def test_without_matplotlib_there_is_a_page_that_says_why_it_has_no_pictures(run: Path) -> None:
    metrics(run)
    diary(run)
    found = Found(write(run))
    assert found.addresses == []
    assert found.has("matplotlib is not installed")
    assert found.has("how many apples are there?")
    assert found.has("right answer: 7")


async def test_a_run_that_ends_waits_for_its_report_and_not_for_long(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics(run)
    where = layout_of(Config.model_validate_json((run / "config.json").read_text()))
    assert await session._report(where) == f"report   {run / 'report.html'}"
    (run / "report.html").unlink()
    monkeypatch.setattr(session, "REPORT_S", 0.01)
    assert "it took longer than 0.01 s; to write it: rhymed report" in await session._report(where)
    assert not (run / "report.html").exists()


# Parts


def test_what_environments_wrote_is_framed_and_failed_calls_are_told(in_turns: Path) -> None:
    html = write(in_turns).read_text()
    assert "2 turns with 1 call, of step 1" in html
    assert '<mark>GH</mark>IJ<i class="given">ab</i>QRS' in html
    assert "2 turns with 3 calls, 1 failed, of step 1" in html
    assert "divide: division by zero" in html


def test_the_middle_of_a_long_response_is_left_out_and_marks_stay() -> None:
    pieces = [("a" * 1000, False), ("b" * 5000, True), ("c" * 1000, False)]
    cut = _cut(pieces)
    assert [(part[0], len(part), drafted) for part, drafted in cut if "…" not in part] == [
        ("a", 1000, False),
        ("b", HEAD - 1000, True),
        ("b", TAIL - 1000, True),
        ("c", 1000, False),
    ]
    assert "4,200 characters" in cut[2][0]
    assert _cut([("short", True)]) == [("short", True)]


def test_what_cannot_be_seen_is_shown() -> None:
    assert html.text('a"<b>&\x00\u202e\n') == "a&quot;&lt;b&gt;&amp;\ufffd\ufffd\n"


def test_accepted_drafts_are_marked() -> None:
    assert (
        _pieces([{"text": "one <", "drafted": False}, {"text": "two", "drafted": True}]) == "one &lt;<mark>two</mark>"
    )
    assert _pieces([{"text": "all", "drafted": None}]) == "all"
