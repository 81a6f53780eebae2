"""`rhymed history stats` and `show` over real stores, at 80 columns."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import lmdb
import pytest
from rich.console import Console

from rhymed.core.messages import EVAL, SampleId
from rhymed.records.history.folder import open_folder
from rhymed.records.history.show import columns, render
from tests.records.history.folders import APPLES, PEARS, two_epochs


def test_stats_tell_each_epoch(run: Path, rhymed) -> None:
    status, out, _ = rhymed("stats", run, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["totals"]["samples"], found["totals"]["tokens"], found["prompts"]) == (8, 124, 2)
    first, second = found["epochs"]
    assert (first["samples"], first["length_mean"], first["length_max"], first["reward_mean"]) == (4, 15.5, 21, 0.25)
    assert (second["name"], second["prompts"], second["samples"], second["reward_mean"]) == ("epoch 2", 2, 4, 1.0)


def test_imported_and_evaluated_responses_stand_apart(make_run, rhymed) -> None:
    more = [(-1, APPLES, 0, [40, 41, 42], 0.0), (EVAL + 3, PEARS, 0, [1, 2], 1.0)]
    folder = make_run("mixed", [*two_epochs(), *more])
    _, out, _ = rhymed("stats", folder)
    assert all(len(line) <= 80 for line in out.splitlines())
    rows = {" ".join(line.split()[:2]): line.split()[2:] for line in out.splitlines() if line.strip()}
    assert rows["epoch 1"] == ["2", "4", "15.5", "21", "0.250"]
    assert rows["imported -1"] == ["1", "1", "3.0", "3", "0.000"]
    assert rows["eval v3"] == ["1", "1", "2.0", "2", "1.000"]
    assert "mixed: 2 prompts, 10 samples, 129 response tokens, 2 epochs" in out


def test_an_empty_store_has_stats(make_run, rhymed) -> None:
    status, out, _ = rhymed("stats", make_run("empty", []))
    assert status == 0
    assert "empty: 0 prompts, 0 samples, 0 response tokens, 0 epochs" in out
    assert rhymed("show", "--run", make_run("empty2", []))[0] == 0


def test_the_prompts_are_listed(run: Path, rhymed) -> None:
    _, out, _ = rhymed("show", "--run", run)
    rows = [line.split() for line in out.splitlines()]
    assert [APPLES, "2", "4", "10.5", "0.625", "how", "many", "apples"] in [row[:8] for row in rows]
    _, out, _ = rhymed("show", "--run", run, "--limit", 1)
    assert "1 more: --limit 2; or" in out
    assert len([json.loads(line) for line in rhymed("show", "--run", run, "--json")[1].splitlines()]) == 2


def test_held_out_prompts_are_marked_and_can_be_chosen(make_run, rhymed) -> None:
    plums = "0123456789abcdef"  # its id would be first
    held = [(EVAL + version, plums, 0, [1, 2], 0.0) for version in (0, 2)]
    folder = make_run("held", [*two_epochs(), *held])

    def listed(*options: object) -> list[list[str]]:
        rows = [line.split() for line in rhymed("show", "--run", folder, *options)[1].splitlines()]
        return [row[:3] for row in rows if row and re.fullmatch("[0-9a-f]{16}", row[0])]

    held_out = [plums, "held-out", "2"]
    training = [[id, "2", "4"] for id in sorted((APPLES, PEARS))]
    assert listed() == [*training, held_out]
    assert listed("--kind", "held-out") == [held_out]
    assert listed("--kind", "training", "--sort", "id") == training
    rows = [json.loads(line) for line in rhymed("show", "--run", folder, "--json")[1].splitlines()]
    assert [(row["kind"], row["epochs"]) for row in rows] == [("training", 2), ("training", 2), ("held-out", 0)]


def test_unscored_prompts_come_after_scored_ones(make_run, rhymed) -> None:
    samples = [(0, "0" * 15 + str(one), 0, [1] * one, reward) for one, reward in ((1, None), (2, 0.5), (3, -1.0))]
    folder = make_run("unscored", samples)
    rows = [json.loads(line) for line in rhymed("show", "--run", folder, "--json")[1].splitlines()]
    assert [row["id"][-1] for row in rows] == ["3", "2", "1"]  # the least reward first
    rows = [
        json.loads(line) for line in rhymed("show", "--run", folder, "--sort", "length", "--json")[1].splitlines()
    ]
    assert [row["id"][-1] for row in rows] == ["1", "2", "3"]


@pytest.mark.parametrize("wanted", [APPLES, APPLES[:5], "MANY  apples"])
def test_one_prompt_stands_side_by_side(run: Path, rhymed, wanted: str) -> None:
    status, out, err = rhymed("show", wanted, "--run", run)
    assert (status, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out
    assert "how many apples are there?" in out
    assert re.search(r"epoch 1 \(step 1\), reward 0.250 +epoch 2 \(step 3\), reward 1.000", out)
    assert re.search(r"#2  reward 0.5, 11 tokens +#2  reward 1, 11 tokens", out)
    assert "#0" not in out  # responses count from 1, too
    assert "GHIJKLMNOPQ" in out  # the text of tokens 40 .. 50


def test_accepted_drafts_are_dim_and_their_share_is_reported(run: Path, rhymed) -> None:
    out = rhymed("show", APPLES, "--run", run)[1]
    assert re.search(r"#1  reward 0, 10 tokens +#1  reward 1 \(exact 1, format 0\.25\),", out)
    assert " 10 tokens, 50% drafted" in out
    assert "#1  reward 0, 10 tokens  " in out, "what is not known is not reported"
    assert out.rstrip().endswith("dim: accepted drafts")
    with open_folder(run) as folder:
        shown = columns(folder, APPLES, [1], 80)
        console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard")
        console.print(render(folder, APPLES, shown, 1))
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[2mGHIJK\x1b[0mLMNOy" in console.file.getvalue()


def test_turns_are_shown_apart_with_their_calls(in_turns: Path, rhymed, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = rhymed("show", APPLES, "--run", in_turns)[1]
    lines = [line.strip() for line in out.splitlines()]
    first = lines.index("[turn 1, 4 tokens]")
    assert lines[first - 1] == (
        "#1  reward 1, 9 tokens, 29% drafted, 2 turns, 1 call, 2 of its tokens from its environment"
    )
    assert lines[first : first + 6] == [
        "[turn 1, 4 tokens]", "GHIJ", "[environment, 2 tokens: add 4.0 ms]", "ab", "[turn 2, 3 tokens]", "QRS",
    ]  # fmt: skip
    assert "[environment, 3 tokens: add 4.0 ms; add 4.0 ms]" in lines
    assert "[calls: divide 1 s, failed: division by zero]" in lines
    assert "#3  reward 0.333333, 3 tokens, 67% drafted, 1 turn" in lines
    rows = [json.loads(line) for line in rhymed("show", APPLES, "--run", in_turns, "--json")[1].splitlines()]
    assert [row["turns"] for row in rows] == [[4, 2, 3], [2, 3, 1], [3]]
    assert json.loads(rows[1]["calls"])[1] == [{"name": "divide", "seconds": 1.25, "error": "division by zero"}]


def test_where_no_drafts_are_known_nothing_is_said_of_them(make_run, rhymed) -> None:
    folder = make_run("plain", [sample for sample in two_epochs() if sample[0] < 2])
    assert "draft" not in rhymed("show", APPLES, "--run", folder)[1]


def test_epochs_can_be_chosen_and_a_missing_one_is_reported(run: Path, rhymed) -> None:
    _, out, _ = rhymed("show", APPLES, "--run", run, "--epochs", "2", "--limit", 1)
    assert "epoch 2" in out
    assert "epoch 1" not in out
    assert "1 more per epoch: --limit 2" in out
    status, _, err = rhymed("show", APPLES, "--run", run, "--epochs", "1,8")
    assert (status, "has no epoch 8; it has epoch 1, epoch 2" in err) == (2, True)
    status, _, err = rhymed("show", APPLES, "--run", run, "--epochs", "0")
    assert (status, "epochs count from 1" in err) == (2, True)
    assert "write numbers with commas" in rhymed("show", APPLES, "--run", run, "--epochs", "two")[2]
    rows = [
        json.loads(line) for line in rhymed("show", APPLES, "--run", run, "--epochs", 1, "--json")[1].splitlines()
    ]
    assert [(row["epoch"], row["index"], row["length"]) for row in rows] == [(0, 0, 10), (0, 1, 11)]


def test_without_a_tokenizer_there_are_ids_and_a_reason(make_run, rhymed) -> None:
    status, out, err = rhymed("show", APPLES, "--run", make_run("traced", engine="trace"))
    assert status == 0
    assert "40 41 42 43" in out
    assert "token ids, not text: the trace engine has no tokenizer" in err


def test_responses_cannot_steer_the_terminal(make_run, rhymed) -> None:
    escape = list(range(2, 258))  # every byte there is
    folder = make_run("bytes", [(0, APPLES, 0, escape, None)], dropped=[SampleId(0, APPLES, 0)])
    _, out, _ = rhymed("show", APPLES, "--run", folder)
    assert "\x1b" not in out
    assert "unscored, 256 tokens, dropped: scorer" in out


def test_what_cannot_be_opened_is_reported(tmp_path: Path, run: Path, make_run, rhymed) -> None:
    assert "does not exist: name a run's folder" in rhymed("stats", tmp_path / "gone")[2]
    (tmp_path / "bare").mkdir()
    assert "has no store in it" in rhymed("stats", tmp_path / "bare")[2]
    (tmp_path / "bare" / "store").mkdir()
    assert "no store process has opened it yet" in rhymed("stats", tmp_path / "bare")[2]
    status, _, err = rhymed("show", "no such words", "--run", run)
    assert (status, "no prompt whose id begins with" in err) == (2, True)


def test_a_damaged_store_is_reported_and_not_read_to_death(tmp_path: Path, run: Path, rhymed) -> None:
    whole = (run / "store" / "data.mdb").read_bytes()
    for name, content, complaint in (
        ("cut", whole[:12_000], "was cut"),
        ("other", b"x" * len(whole), "is damaged"),
        ("none", b"", "is damaged"),
    ):
        shutil.copytree(run, tmp_path / name)
        (tmp_path / name / "store" / "data.mdb").write_bytes(content)
        status, _, err = rhymed("stats", tmp_path / name)
        assert (status, complaint in err) == (2, True), err


@pytest.mark.parametrize("verb", [(), ("stats",), ("show",), ("export",), ("import",), ("verify",), ("backup",)])
def test_every_verb_explains_itself_with_an_example(verb: tuple[str, ...], rhymed, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        rhymed(*verb, "--help")
    assert end.value.code == 0
    assert re.search(r"examples?:\n  rhymed history", capsys.readouterr().out)


def test_what_is_damaged_is_reported_and_the_rest_is_used(run: Path, tmp_path: Path, rhymed) -> None:
    with lmdb.open(str(run / "store"), max_dbs=8) as env, env.begin(write=True) as txn:
        table = env.open_db(b"tokens", txn=txn)
        key, value = next(iter(txn.cursor(table)))
        txn.put(key, bytes(len(value)), db=table)
    status, out, _ = rhymed("stats", run)
    assert (status, "epoch 2" in out) == (0, True)
    status, out, err = rhymed("export", tmp_path / "rest.jsonl", run)
    assert (status, "4 samples of 1 prompt" in out) == (1, True)
    assert "left out 1 damaged prompt; the first is prompt" in err
    assert len((tmp_path / "rest.jsonl").read_text().splitlines()) == 4
