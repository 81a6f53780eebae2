"""The page of a run as one file: what is in it, whatever is in the folder, and that all of it is only text."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.messages import EVAL, SampleId
from rhymed.core.run import folder as runs
from rhymed.core.run import provenance
from rhymed.core.run.layout import layout_of
from rhymed.core.run.timeline import Event, Span, Writer
from rhymed.show.dashboard.data.source import TOO_LARGE
from rhymed.show.dashboard.data.source import about as tables
from rhymed.show.dashboard.saved import SHOWN, _clean, gather, write
from rhymed.start.cli import main
from rhymed.start.launch import session
from tests.records.history.fixtures import in_turns, make_run, rhymed, tokenizer
from tests.records.history.fixtures import run as run
from tests.records.history.folders import APPLES, PEARS
from tests.show.dashboard.browser import chromium, expect, visit, watch

__all__ = ["in_turns", "make_run", "rhymed", "run", "tokenizer"]

Made = Callable[..., Path]


def test_no_secret_is_left_by_the_name_of_its_column_or_by_the_cuts_of_drafts() -> None:
    key = "hf_AbCdEfGhIjKlMnOpQrStUv"
    pieces = [{"text": f"It is {key[:6]}", "drafted": True}, {"text": f"{key[6:]} here", "drafted": False}]
    plain = [{"text": "a", "drafted": True, "run": 0}, {"text": "b", "drafted": False, "run": 1}]
    row = {"api_key": "correcthorse", "question": "q", "eos_token": "</s>", "seconds_per_token": 0.5}
    deep = {"credentials": {"user": "me", "passwords": ["hunter2", ""]}}
    cleaned = _clean({"pieces": pieces, "row": row, "deep": deep, "other": {"pieces": plain}})
    assert cleaned["pieces"] == [{"text": "It is hf_*** here", "drafted": True}]
    assert cleaned["row"] == {**row, "api_key": "***"}
    assert cleaned["deep"] == {"credentials": {"user": "***", "passwords": ["***", ""]}}
    assert cleaned["other"]["pieces"] == plain


class Found(HTMLParser):
    """Elements, the text of each kind, and every address."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.policy = ""
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(page.read_text())
        self.data = json.loads(self.texts["script application/json"][0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._open = f"{tag} {given.get('type') or ''}".strip()
        self.addresses += [given[name] or "" for name in ("src", "href", "srcset", "data") if name in given]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        assert not [name for name in given if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.setdefault(self._open, []).append(data)


def about(data: dict[str, Any], title: str) -> dict[str, str]:
    return dict(dict(data["answers"]["api/run"]["about"])[title])


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


# The file


def test_the_page_is_one_file_that_asks_for_nothing_and_runs_only_its_own_script(run: Path) -> None:
    metrics(run)
    page = write(run)
    assert page == run / "report.html"
    found = Found(page)
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    for kind in ("style", "script"):
        digest = b64encode(hashlib.sha256("".join(found.texts[kind]).encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in found.policy
    assert found.policy.startswith("default-src 'none'")
    assert list(run.glob(".report*")) == []
    assert write(run).read_text() == page.read_text(), "it is the same each time"


def test_sums_samples_and_what_it_takes_to_repeat_the_run_are_inside(run: Path) -> None:
    metrics(run)
    lost = Event(t=110.0, event="lost", worker="rollout-0", text="silent for 3 s")
    diary(run, Event(t=99.0, event="begun", step=0), lost, Event(t=119.0, event="finished"))
    provenance.note(run, provenance.now(["run", "my file.toml"], Config()))
    data = gather(run)
    assert data["problems"] == []
    assert data["answers"]["api/run"]["state"] == "finished"
    assert [row["step"] for row in data["answers"]["api/news"]["steps"]["steps"]] == list(range(6))
    assert "silent for 3 s" in [event.get("text") for event in data["answers"]["api/news"]["timeline"]["events"]]
    assert {"0.100 → 0.400", "75%", "1.50x", "25%"} <= {value for _, value in data["totals"]}
    assert [one["id"] for one in data["samples"]] == [f"3/{PEARS}/0", f"3/{PEARS}/1"]
    assert all(one["pieces"] for one in data["samples"])
    (command,) = about(data, "Started by").values()
    assert "rhymed run 'my file.toml'" in command


def test_of_a_large_step_there_are_some_samples_of_as_many_prompts_as_possible(make_run: Made) -> None:
    samples = [(1, prompt, index, [50, 51, 52], 1.0) for prompt in (APPLES, PEARS) for index in range(20)]
    data = gather(make_run("large", [*samples, (0, APPLES, 0, [50], 1.0), (EVAL, PEARS, 0, [50], 1.0)]))
    assert (len(data["samples"]), data["of"]) == (SHOWN, 40)
    ids = {one["id"] for one in data["samples"]}
    assert ids == {f"1/{prompt}/{index}" for prompt in (APPLES, PEARS) for index in range(SHOWN // 2)}
    assert {one["answer"] for one in data["samples"]} == {"7", None}


HOSTILE = '</script><script>alert(1)</script><img src=x onerror="x()"><!--&amp;\u202e\x1b[31m'


def hostile_run(make_run: Made) -> Path:
    tokens = [ord(c) - 31 for c in "<script>alert(1)</script></pre>&lt;" if 33 <= ord(c) <= 126]
    run = make_run("bad", [(0, APPLES, 0, tokens, 0.5), (0, APPLES, 1, tokens[:9], 0.0)])
    config = json.loads((run / "config.json").read_text())
    config["run"]["name"] = config["data"]["system"] = HOSTILE
    config[HOSTILE] = {HOSTILE: [HOSTILE]}
    (run / "config.json").write_text(json.dumps(config))
    metrics(run)
    diary(run, Event(t=101.0, event="lost", worker=HOSTILE, text=HOSTILE))
    start = provenance.now(["run", HOSTILE], Config())
    start = msgspec.structs.replace(start, commit=HOSTILE, versions={HOSTILE: HOSTILE}, files={HOSTILE: HOSTILE})
    provenance.note(run, start)
    return run


def test_no_text_becomes_markup(make_run: Made) -> None:
    page = write(hostile_run(make_run))
    found = Found(page)
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    assert page.read_text().count("<script") == 2, "its data and its code"
    assert "</script><script>alert(1)" in found.data["answers"]["api/run"]["name"]
    assert not set("\u202e\x1b") & set(json.dumps(found.data, ensure_ascii=False))


SECRET = "hf_Abcdefgh12345678"


def test_secrets_are_hidden_wherever_they_are(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["metrics"] = {"wandb_api_key": "plain-key-1", "mlflow": "http://me:sesame@there"}
    (run / "config.json").write_text(json.dumps(config))
    diary(run, Event(t=101.0, event="lost", worker="rollout-0", text=f"login with {SECRET} failed"))
    start = provenance.now(["run", "x.toml"], Config())
    provenance.note(run, msgspec.structs.replace(start, command=f"API_KEY=plain-key-2 rhymed run --token {SECRET}"))
    text = write(run).read_text()
    for secret in (SECRET, "plain-key-1", "plain-key-2", "sesame"):
        assert secret not in text


def test_it_opens_from_the_disk_without_any_request(make_run: Made, in_turns: Path) -> None:
    bad = hostile_run(make_run)
    with (bad / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "val/sums/acc/mean@1": 0.5}\n{"step": 4, "val/sums/acc/mean@1": 0.75}\n')
    with chromium() as browser:
        for shown in (bad, in_turns):
            page = browser.new_page()
            problems, asked = watch(page)
            visit(page, write(shown).as_uri())
            for width, scheme in ((1280, "light"), (390, "dark")):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                look(page, width, shown == bad)
            page.close()
            assert problems == []
            assert [one for one in asked if not one.startswith(("file:", "data:"))] == []


def look(page: Any, width: int, hostile: bool) -> None:
    """`hostile`: it is the run with metrics, else the one in turns."""
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("saved page")
    page.get_by_role("tab", name="Overview").click()
    held_out = page.get_by_role("region", name="Evaluation on held-out prompts").get_by_role("cell")
    expect(held_out).to_have_text(["0.5", "0.75"] if hostile else [])
    if hostile:
        expect(page.get_by_role("img").first).to_be_visible()
    for tab, role in (("Workers", "img"), ("Samples", "article")):
        page.get_by_role("tab", name=tab).click()
        panel = page.get_by_role("tabpanel", name=tab)
        if hostile:
            expect(panel.get_by_role(role).first).to_be_visible()
    calls = expect(panel)
    (calls.not_to_contain_text if hostile else calls.to_contain_text)("division by zero")
    page.get_by_role("tab", name="Configuration").click()
    expect(page.get_by_role("tabpanel", name="Configuration").get_by_role("row").nth(20)).to_be_visible()
    assert page.locator(":root").evaluate("page => page.scrollWidth") <= width
    assert page.locator("script").count() == 2


# Runs of all kinds


def test_a_crashed_run_is_shown_as_far_as_it_is_there(make_run: Made) -> None:
    run = make_run("crashed", dropped=[SampleId(3, PEARS, 0)])
    metrics(run, 2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{}\n{"step": "x"}\n\x00\xff\n{"step": 2, "rewa')
    (run / "config.json").write_text('{"run": {"na')
    (run / "starts.jsonl").write_bytes(b'{"t": 1.0}\n\xff\xfe\n{"t')
    (run / "timeline.jsonl").write_bytes(b"\x00" * 100)
    data = Found(write(run)).data
    assert (data["answers"]["api/run"]["state"], len(data["answers"]["api/news"]["steps"]["steps"])) == ("stopped", 2)
    assert data["problems"] == ["There is no config.json that can be read."]
    assert "scorer timed out" in [one["reason"] for one in data["samples"]]


def test_that_the_metrics_are_gone_is_stated(run: Path) -> None:
    diary(run, *(Event(t=110.0 + step, event="trained", step=step) for step in range(6)))
    assert "metrics.jsonl is not in the run's folder" in gather(run)["answers"]["api/run"]["missing"]
    metrics(run, 6)
    assert gather(run)["answers"]["api/run"]["missing"] == ""


def test_a_page_of_a_long_run_stays_small(run: Path) -> None:
    metrics(run, 12_345)
    data = gather(run)
    kept = [row["step"] for row in data["answers"]["api/news"]["steps"]["steps"]]
    assert (len(kept), kept[0], kept[-1]) == (2_000, 0, 12_344)
    assert {later - step for step, later in pairwise(kept)} == {6, 7}
    assert data["problems"][-1].startswith("The curves have 2,000 of 12,345 steps")
    assert len(json.dumps(data)) < 3_000_000
    assert any("12,345" in str(one) for one in data["totals"]), data["totals"]


def test_a_run_that_is_held_goes_on_unless_its_end_is_known(run: Path) -> None:
    with runs.hold(layout_of(Config.model_validate_json((run / "config.json").read_text()))):
        assert gather(run)["answers"]["api/run"]["state"] == "running"
        assert gather(run, ended=True)["answers"]["api/run"]["state"] == "stopped"


def test_every_setting_of_a_dataset_that_was_chosen_has_a_row(run: Path) -> None:
    held = {"name": "sums", "source": "reasoning_gym", "task": "chain_sum", "args": {"min_terms": 2}, "size": 64}
    config = Config.model_validate({"eval": {"datasets": [held]}, "rollout": {"prompts_per_step": 4}})
    ((title, rows),) = tables(config.model_dump(mode="json"), [])
    assert title == "Settings that differ from the defaults"
    changed = dict(rows)
    assert (changed["eval.datasets[sums].args.min_terms"], changed["rollout.prompts_per_step"]) == ("2", "4")
    assert "eval.datasets[sums].revision" not in changed, "a default"


def test_how_to_come_by_the_code_and_the_files(run: Path) -> None:
    first = provenance.now(["run", "a.toml"], Config())
    commit, other = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    starts = [
        msgspec.structs.replace(first, commit=commit, changed=True, files={"rows.jsonl": "aa" * 32, "big": ""}),
        msgspec.structs.replace(first, t=first.t + 60, commit=other, changed=False, files={"rows.jsonl": "bb" * 32}),
    ]
    found = dict(tables({}, starts))
    assert f", at {commit[:12]}, changed" in found["Started by"][0][1], "each start with its own"
    files = [("rows.jsonl", "aa" * 32), ("big", TOO_LARGE), ("rows.jsonl", "bb" * 32)]
    assert found["Files at the start, SHA-256"] == files


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(Config().model_dump_json())
    data = Found(write(tmp_path)).data
    assert (data["samples"], data["totals"], data["answers"]["api/news"]["steps"]["steps"]) == ([], [], [])
    assert ["there is no store" in one for one in data["problems"]] == [True]


def test_a_run_that_only_evaluates_shows_what_it_found(make_run: Made) -> None:
    run = make_run("exam", [(EVAL, APPLES, 0, [50, 51, 52], 1.0), (EVAL, PEARS, 0, [50, 51], 0.0)])
    (run / "metrics.jsonl").write_text('{"step": 0, "val/sums/acc/mean@1": 0.5, "val/sums/prompts": 2.0}\n')
    data = gather(run)
    assert data["answers"]["api/news"]["steps"]["evaluations"][0]["val/sums/acc/mean@1"] == 0.5
    assert len(data["samples"]) == 2


def test_what_environments_wrote_and_failed_calls_are_inside(in_turns: Path) -> None:
    rows = gather(in_turns)["samples"]
    errors = [call["error"] for row in rows for part in row["runs"] for call in part["calls"] if call["error"]]
    assert "division by zero" in errors
    assert any(part["environment"] for row in rows for part in row["runs"])


# The commands


def test_a_folder_that_is_no_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "gone")]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["report", "--out", "{there}"], ["view", "--save", "{there}/report.html"]])
def test_it_may_be_written_elsewhere(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    metrics(run)
    there = tmp_path / "there"
    name, *more = (part.format(there=there) for part in command)
    assert main([name, str(run), *more]) == 0
    assert capsys.readouterr().out.strip() == str(there / "report.html")
    assert not (run / "report.html").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written there"):
        write(run, tmp_path / "file" / "report.html")


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
