"""Every route, over a real server and a real folder."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rhymed.core.messages import EVAL
from rhymed.core.run.timeline import FAILED, Event, Writer
from rhymed_store.browse import Browse
from rhymed_store.database.tables import Reader
from tests.records.history.folders import APPLES, PEARS, two_epochs, write_store
from tests.records.history.sessions import GOT, RAISED, write_sessions
from tests.show.dashboard.rows import NOW, queues, row


async def test_a_run_that_is_over(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        status, answer = await ask("/api/run")
        assert status == 200
        assert (answer["name"], answer["live"], answer["state"], answer["step"], answer["steps"]) == (
            "watched", False, "finished", 4, 4,
        )  # fmt: skip
        assert answer["started"] == NOW - 1.0
        assert answer["config"]["rollout"]["group_size"] == answer["group_size"] == 8
        assert answer["versions"]["rhymed"]
        assert "secret" not in json.dumps(answer)
        news = (await ask("/api/news"))[1]
        assert (news["queues"], news["over"]) == (None, True)
        assert (await ask("/metrics"))[0] == 503
        assert await ask("/health") == (200, "ok")


async def test_a_run_that_lives(run: Path, serve: Any) -> None:
    async with serve(run, queues) as ask:
        _, answer = await ask("/api/run")
        assert (answer["live"], answer["state"], answer["step"], answer["version"]) == (True, "running", 2, 2)
        news = (await ask("/api/news"))[1]
        answer = news["queues"]
        assert not news["over"]
        assert answer["workers"][0]["holding"] == [
            {
                "id": {"step": 2, "prompt": APPLES, "index": 0},
                "tokens": 7,
                "before": 0,
                "parked": False,
                "seconds": 0.0,
            }
        ]
        assert answer["troubles"] == []  # what is left out on the wire is there
        status, text = await ask("/metrics")
        assert status == 200
        assert 'rhymed_up{run="watched"} 1' in text


async def test_elapsed_time_and_forecast(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, over = await ask("/api/run")
        assert (over["elapsed_s"], over["eta_s"]) == (5.0, None)
    writer = Writer(run)
    writer.write([Event(t=NOW + 6 + 2 * step, event="trained", worker="trainer", step=step) for step in range(2)])
    writer.close()
    async with serve(run, queues) as ask:
        for alive in ((await ask("/api/run"))[1], (await ask("/api/news"))[1]["queues"]):
            assert (alive["elapsed_s"], alive["eta_s"]) == (8.0, 2.0)  # two steps of 2 s; the one at work is late


async def test_many_who_look_are_one_question(run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed.show.dashboard.snapshots.FRESH_S", 1000.0)
    asked = []

    def answer() -> Any:
        asked.append(1)
        return queues()

    async with serve(run, answer) as ask:
        for _ in range(5):
            await ask("/api/news")
        assert len(asked) == 1


async def test_steps(run: Path, serve: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            'not JSON\n[1]\n{"step": "x"}\n{"step": 9, "odd": "\\ud800"}\n'
            + json.dumps(row(3, odd=float("nan"), again=1.0))
            + "\n"
            + '{"step":'
        )
    async with serve(run) as ask:
        answer = (await ask("/api/news"))[1]["steps"]
        assert [row["step"] for row in answer["steps"]] == [0, 1, 2, 3]
        assert answer["steps"][3]["again"] == 1.0  # trained again: the last row counts
        assert answer["steps"][3]["odd"] is None
        assert answer["evaluations"][0]["val/held/acc/mean@1"] == 0.5
        assert [(row["epoch"], row["steps"]) for row in answer["epochs"]] == [(0, 2), (1, 2)]
        serial = answer["serial"]
        assert (await ask(f"/api/news?serial={serial}"))[1]["steps"] is None
        with (run / "metrics.jsonl").open("a") as file:
            file.write("0}\n" + json.dumps(row(4)) + "\n" + json.dumps(row(1, again=1.0)) + "\n")
        answer = (await ask(f"/api/news?serial={serial}"))[1]["steps"]
        assert [row["step"] for row in answer["steps"]] == [0, 1, 4]  # two of them trained again
        (run / "metrics.jsonl").write_text(json.dumps(row(0)) + "\n")  # another, shorter file
        for serial in (answer["serial"], 10_000):  # of another process
            answer = (await ask(f"/api/news?serial={serial}"))[1]["steps"]
            assert [row["step"] for row in answer["steps"]] == [0]


async def test_the_timeline(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        answer = (await ask("/api/news"))[1]["timeline"]
        assert [row["t"] - NOW for row in answer["spans"]] == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert answer["spans"][0]["in"] == {"decode": 0.75, "idle": 0.25}
        assert answer["events"] == [{"t": NOW, "event": "begun", "step": 0}]
        assert answer["activities"]["decode"].startswith("#")
        answer = (await ask(f"/api/news?since={NOW + 3}"))[1]["timeline"]
        assert [row["t"] - NOW for row in answer["spans"]] == [4.0, 5.0]


async def test_lengths(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, answer = await ask("/api/lengths")
        first, second = answer["epochs"]
        assert (first["epoch"], second["epoch"]) == (0, 1)
        assert first["edges"] == second["edges"]
        assert len(first["edges"]) == len(first["counts"]) + 1
        assert sum(first["counts"]) == sum(second["counts"]) == 4
        assert (first["mean"], first["max"]) == (15.5, 21)


async def test_prompts(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, answer = await ask("/api/prompts")
        assert answer["total"] == 2
        assert [row["id"] for row in answer["prompts"]] == sorted([APPLES, PEARS])
        apples = next(row for row in answer["prompts"] if row["id"] == APPLES)
        assert apples["text"] == "how many apples are there?"
        assert (apples["samples"], apples["epochs"], apples["length"], apples["reward"]) == (4, 2, 10.5, 0.625)
        assert apples["spread"] == pytest.approx(0.4146, abs=1e-4)
        _, answer = await ask("/api/prompts?sort=length")
        assert [row["id"] for row in answer["prompts"]] == [PEARS, APPLES]
        _, answer = await ask("/api/prompts?sort=length&order=asc&limit=1&offset=1")
        assert (answer["total"], [row["id"] for row in answer["prompts"]]) == (2, [PEARS])
        _, answer = await ask("/api/prompts", params={"query": "many  PEARS"})
        assert [row["id"] for row in answer["prompts"]] == [PEARS]
        _, answer = await ask(f"/api/prompts?query={APPLES[:6]}")
        assert [row["id"] for row in answer["prompts"]] == [APPLES]


async def test_one_prompt(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, answer = await ask(f"/api/prompts/{APPLES}")
        assert (answer["id"], answer["text"], answer["missing"]) == (APPLES, "how many apples are there?", "")
        assert (answer["row"], answer["answer"]) == ({"answer": "7"}, "7")
        assert [(row["epoch"], row["step"], row["name"]) for row in answer["epochs"]] == [
            (0, 0, "epoch 1"), (1, 2, "epoch 2"),
        ]  # fmt: skip
        first, second = answer["epochs"][0]["samples"]
        assert first["id"] == f"0/{APPLES}/0"
        assert first["text"] == "GHIJKLMNOP"
        assert first["versions"] == [[0, 10]]
        assert (second["state"], second["reason"], second["reward"]) == ("dropped", "scorer timed out", 0.5)


async def test_one_sample(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, answer = await ask(f"/api/samples/2/{APPLES}/0")
        assert (answer["id"], answer["epoch"], answer["length"]) == (f"2/{APPLES}/0", 1, 10)
        assert (answer["prompt"], answer["answer"]) == ("how many apples are there?", "7")
        assert answer["parts"] == {"exact": 1.0, "format": 0.25}
        assert "tokens" not in answer
        assert answer["pieces"] == [{"text": "GHIJK", "drafted": True}, {"text": "LMNOy", "drafted": False}]
        assert answer["missing"] == ""


async def test_a_sample_in_turns_is_cut_into_its_runs_with_their_calls(bare: Path, serve: Any) -> None:
    write_store(bare, [])
    write_sessions(bare)
    async with serve(bare) as ask:
        _, answer = await ask(f"/api/samples/{GOT}")
        assert answer["session"] == {
            "turns": 2, "rows": 1, "calls": 1, "errors": 0, "environment_tokens": 2, "earned": None,
        }  # fmt: skip
        assert [(run["turn"], run["environment"], run["tokens"]) for run in answer["runs"]] == [
            (0, False, 4), (0, True, 2), (1, False, 3),
        ]  # fmt: skip
        assert [run["calls"] for run in answer["runs"]] == [[{"name": "add", "seconds": 0.004, "error": ""}], [], []]
        assert [(piece["text"], piece["drafted"], piece["run"]) for piece in answer["pieces"]] == [
            ("GH", True, 0), ("IJ", False, 0), ("ab", False, 1), ("QRS", False, 2),
        ]  # fmt: skip
        assert answer["read"] == "<pad><eos>!"
        _, answer = await ask(f"/api/samples/{GOT}?tokens=1")
        assert [row["logprob"] for row in answer["tokens"]] == [0.0] * 4 + [None] * 2 + [0.0] * 3
        _, answer = await ask(f"/api/samples/{RAISED}")
        assert (answer["session"]["calls"], answer["session"]["errors"]) == (3, 1)
        assert answer["runs"][-1]["calls"] == [{"name": "divide", "seconds": 1.25, "error": "division by zero"}]
        _, answer = await ask(f"/api/prompts/{APPLES}")
        assert [row["session"]["turns"] for row in answer["epochs"][0]["samples"]] == [2, 2, 1]


async def test_one_sample_token_by_token(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, answer = await ask(f"/api/samples/2/{APPLES}/0?tokens=1")
        assert [row["text"] for row in answer["tokens"]] == list("GHIJKLMNOy")
        assert {(row["logprob"], row["version"]) for row in answer["tokens"]} == {(0.0, 2)}
        assert answer["unknown"] == ""


async def test_held_out_prompts_are_distinguished_from_trained_ones(bare: Path, serve: Any) -> None:
    write_store(bare, [*two_epochs()[:4], (EVAL + 2, PEARS, 0, [40, 41], 1.0)])
    async with serve(bare) as ask:
        _, answer = await ask("/api/prompts?kind=held-out")
        assert [(row["id"], row["kind"], row["epochs"]) for row in answer["prompts"]] == [(PEARS, "held-out", 0)]
        assert answer["kinds"] == {"training": 1, "held-out": 1, "imported": 0}
        _, answer = await ask("/api/prompts?kind=training")
        assert [row["id"] for row in answer["prompts"]] == [APPLES]
        _, answer = await ask(f"/api/samples/{EVAL + 2}/{PEARS}/0?tokens=1")
        assert [row["logprob"] for row in answer["tokens"]] == [None, None]
        assert "an evaluation" in answer["unknown"]


async def test_rewards_by_epoch(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, answer = await ask("/api/rewards")
        first, second = answer["epochs"]
        middles = [(low + high) / 2 for low, high in pairwise(first["edges"])]
        held = {round(middle, 6): count for middle, count in zip(middles, first["counts"], strict=True) if count}
        assert held == {0.0: 2, 0.5: 2}
        assert (second["counts"][-1], second["mean"], second["max"]) == (4, 1.0, 1.0)


async def test_words_are_found_in_responses(run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(run) as ask:
        _, answer = await ask("/api/responses?query=hijk")
        found = [(row["id"], row["epoch"], row["text"]) for row in answer["found"]]
        assert (f"2/{APPLES}/0", 1, ["G", "HIJK", "LMNOy"]) in found
        assert len(found) == 8, "the other prompt has these letters, too"
        assert (answer["searched"], answer["next"], answer["prompts"]) == (8, None, 2)
        monkeypatch.setattr("rhymed.show.dashboard.data.samples.BUDGET_S", -1.0)
        _, first = await ask("/api/responses?query=hijk")
        assert (len(first["found"]), first["next"], first["before"]) == (4, max(APPLES, PEARS), 1)
        _, rest = await ask(f"/api/responses?query=hijk&from={first['next']}")
        assert (len(rest["found"]), rest["next"]) == (4, None)
        assert first["found"] + rest["found"] == answer["found"]
        _, none = await ask("/api/responses?query=")
        assert none["found"] == []


async def test_the_newest_lines_of_the_logs(run: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = run / "logs"
    logs.mkdir()
    line = {"t": "2026-01-31T14:05:{:02}.000Z", "level": "info", "process": "broker", "text": "line {}"}
    rows = [{**line, "t": line["t"].format(n), "text": f"line {n}"} for n in range(50)]
    failed = {**line, "t": "2026-01-31T14:05:09.500Z", "level": "error", "process": "trainer", "text": "it ends"}
    failed |= {"error": {"type": "ValueError", "message": "no", "traceback": "Traceback\n  here"}}
    (logs / "broker.log").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    (logs / "trainer.log").write_bytes(msgspec.json.encode(failed) + b"\n")
    (logs / "trainer.out").write_text("a library says so\n")
    async with serve(run) as ask:
        _, answer = await ask("/api/logs")
        assert answer["processes"] == ["broker", "trainer"]
        assert [row["text"] for row in answer["lines"]][9:12] == ["line 9", "it ends", "line 10"]
        assert answer["total"] == 52
        remark = {
            **line,
            "t": "2026-01-31T14:05:59.000Z",
            "logger": "vllm.engine",
            "text": "a remark",
            "level": "warning",
        }
        (logs / "rollout-0.log").write_bytes(msgspec.json.encode(remark) + b"\n")
        _, answer = await ask("/api/logs?level=warning")
        assert ([row["process"] for row in answer["lines"]], answer["hidden"]) == (["trainer", "trainer"], 1)
        _, answer = await ask("/api/logs?level=warning&libraries=1")
        assert ({row["text"] for row in answer["lines"]} >= {"a remark"}, answer["hidden"]) == (True, 0)
        _, answer = await ask("/api/logs?level=error")
        assert [(row["text"], row["trace"]) for row in answer["lines"]] == [("it ends", "Traceback\n  here")]
        _, answer = await ask("/api/logs?process=broker&query=LINE+4")
        assert len(answer["lines"]) == 11
        monkeypatch.setattr("rhymed.show.dashboard.data.source.TAIL_BYTES", 300)
        monkeypatch.setattr("rhymed.show.dashboard.data.source.MOST", 2)
        _, answer = await ask("/api/logs?process=broker")
        assert [row["text"] for row in answer["lines"]] == ["line 48", "line 49"]
        assert 2 <= answer["total"] < 5, "only the end of the file is read"


async def test_advice_comes_with_the_steps(run: Path, serve: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row(step) | {"reward/flat_groups": 1.0}) + "\n" for step in range(4, 20))
    async with serve(run) as ask:
        answer = (await ask("/api/news"))[1]["steps"]
        assert [advice["name"] for advice in answer["advice"]] == ["flat"]


async def test_the_store(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        _, answer = await ask("/api/store")
        assert (answer["samples"], answer["limit_bytes"], answer["missing"]) == (8, 8 << 30, "")
        assert answer["tokens"] == sum(
            10 + 10 * pears + index for pears in (0, 1) for index in (0, 1) for _ in (0, 1)
        )
        assert answer["used_bytes"] > 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/prompts/ffffffffffffffff", 404),
        ("/api/prompts/nothing", 400),
        (f"/api/samples/0/{APPLES}/9", 404),
        (f"/api/samples/0/{APPLES}/-1", 400),
        (f"/api/samples/0/{APPLES}/65536", 400),
        (f"/api/samples/99999999999/{APPLES}/0", 400),
        (f"/api/samples/{'9' * 5000}/{APPLES}/0", 400),
        (f"/api/samples/one/{APPLES}/0", 400),
        ("/api/samples/0/x/0", 400),
        ("/api/news?serial=x", 400),
        ("/api/news?serial=-1", 400),
        ("/api/news?since=nan", 400),
        ("/api/news?since=-1e300", 400),
        ("/api/prompts?sort=size", 400),
        ("/api/prompts?order=up", 400),
        ("/api/prompts?kind=mine", 400),
        ("/api/responses?query=a&from=1", 400),
        ("/api/logs?level=loud", 400),
        ("/api/prompts?offset=-1", 400),
        ("/api/prompts?limit=99999999999999999999", 400),
        ("/api/nothing", 404),
        ("/nothing", 404),
    ],
)
async def test_an_error_is_a_sentence(run: Path, serve: Any, path: str, status: int) -> None:
    async with serve(run) as ask:
        found, answer = await ask(path)
        assert found == status
        assert answer["error"]
        assert (await ask("/api/run"))[0] == 200


async def test_only_get(run: Path, serve: Any) -> None:
    async with serve(run) as ask, ask.session.post(ask.url + "/api/run", data=b"x" * 100_000) as response:
        assert response.status == 405
        assert "error" in await response.json()


async def test_a_long_answer_is_compressed(run: Path, serve: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row(step)) + "\n" for step in range(4, 200))
    async with serve(run) as ask:
        plainly = await ask("/api/news", headers={"Accept-Encoding": "identity"})
        url, headers = ask.url + "/api/news", {"Accept-Encoding": "gzip"}
        async with ask.session.get(url, headers=headers) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert (200, await response.json()) == plainly


# -- files ------------------------------------------------------------------------------------------------------


async def test_the_page_and_its_files(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        for path, kind in (("/", "text/html"), ("/static/vendor/uplot/uPlot.esm.js", "text/javascript")):
            async with ask.session.get(ask.url + path) as response:
                assert (response.status, response.content_type) == (200, kind)
                assert response.headers["Cache-Control"] == "no-cache"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                tag = response.headers.get("ETag")
            if path == "/":
                continue  # is made for each request
            async with ask.session.get(ask.url + path, headers={"If-None-Match": tag}) as response:
                assert response.status == 304
        async with ask.session.get(ask.url + "/api/run") as response:
            assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2f%2e%2e%2fconfig.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/vendor",
        "/static/",
        "/static/page.html%00",
        "/static/" + "x" * 5000,
        "/../../etc/passwd",
    ],
)
async def test_nothing_else_is_served(run: Path, serve: Any, path: str) -> None:
    async with serve(run) as ask:
        head = await raw(ask.port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
        assert b"root:" not in head
        assert b"import " not in head


async def raw(port: int, text: str) -> bytes:
    import asyncio

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode())
    answer = await reader.read()
    writer.close()
    return answer


# -- folders in which something is missing ------------------------------------------------------------------------


async def test_a_run_that_has_not_begun(bare: Path, serve: Any) -> None:
    async with serve(bare) as ask:
        _, answer = await ask("/api/run")
        assert (answer["state"], answer["step"], answer["steps"], answer["missing"]) == ("stopped", 0, 4, "")
        news = (await ask("/api/news"))[1]
        assert news["steps"] is None
        assert (news["timeline"]["spans"], news["timeline"]["events"]) == ([], [])


async def test_who_failed_has_not_finished(bare: Path, serve: Any) -> None:
    async with serve(bare) as ask:
        for text, state in ((f"{FAILED}the store is full", "stopped"), ("nothing to train: evaluated", "finished")):
            writer = Writer(bare)
            writer.write([Event(t=NOW + (state == "finished"), event="finished", text=text)])
            writer.close()
            assert (await ask("/api/run"))[1]["state"] == state


async def test_trained_steps_without_their_rows_are_stated(run: Path, serve: Any) -> None:
    (run / "metrics.jsonl").unlink()
    writer = Writer(run)
    writer.write([Event(t=NOW + 9 + step, event="trained", step=step) for step in range(4)])
    writer.close()
    async with serve(run) as ask:
        _, answer = await ask("/api/run")
        assert (answer["state"], answer["step"]) == ("finished", 4)
        assert answer["missing"].startswith("metrics.jsonl is not in the run's folder")
    for step, missing in ((1, False), (2, True)):  # of one that lives, the first row may be on its way
        async with serve(run, lambda step=step: queues(step=step)) as ask:
            assert bool((await ask("/api/run"))[1]["missing"]) == missing


async def test_a_folder_without_store(run: Path, serve: Any) -> None:
    (run / "store" / "data.mdb").unlink()
    async with serve(run) as ask:
        for path in ("lengths", "prompts", f"prompts/{APPLES}", f"samples/0/{APPLES}/0"):
            status, answer = await ask(f"/api/{path}")
            assert status == 404
            assert "on this machine" in answer["error"]
        _, answer = await ask("/api/store")
        assert (answer["samples"], answer["used_bytes"], answer["tokens"]) == (
            8,
            1000,
            None,
        )  # as the run answer it last
        assert "on this machine" in answer["missing"]
        assert (await ask("/api/news"))[0] == 200


async def test_an_empty_folder(tmp_path: Path, serve: Any) -> None:
    async with serve(tmp_path) as ask:
        for path in ("run", "news", "store"):
            assert (await ask(f"/api/{path}"))[0] == 200


async def test_a_configuration_that_is_none(run: Path, serve: Any) -> None:
    (run / "config.json").write_text('["not", "ours"]')
    async with serve(run) as ask:
        _, answer = await ask("/api/run")
        assert (answer["name"], answer["config"], answer["steps"]) == ("watched", {}, None)
        status, answer = await ask(f"/api/samples/0/{APPLES}/0")
        assert status == 200
        assert answer["pieces"][0]["text"].startswith("40 41 42 ")  # without a model, ids
        assert "its model is unknown" in answer["missing"]


async def test_a_store_that_is_cut(run: Path, serve: Any) -> None:
    file = run / "store" / "data.mdb"
    os.truncate(file, 3 * 4096)
    async with serve(run) as ask:
        status, answer = await ask("/api/prompts")
        assert status == 500
        assert "was cut" in answer["error"]
        assert (await ask("/api/run"))[0] == 200
        assert "was cut" in (await ask("/api/store"))[1]["missing"]


async def test_a_store_that_is_mended_is_seen(run: Path, serve: Any) -> None:
    file = run / "store" / "data.mdb"
    whole = file.read_bytes()
    async with serve(run) as ask:
        file.write_bytes(whole[: 3 * 4096])
        assert (await ask("/api/prompts"))[0] == 500
        file.write_bytes(whole)
        assert (await ask("/api/prompts"))[0] == 200
        other = file.with_name("other")
        other.write_bytes(whole)
        other.replace(file)  # as a copy that is put back
        assert (await ask("/api/prompts"))[0] == 200


def spoil(store: Path, sample: str) -> None:
    """Its tokens are not what was written any more."""
    with Reader(store) as reader:
        record = next(row.record for row in Browse(reader).headers(sample.split("/")[1]) if str(row.sample) == sample)
        with reader.read() as txn, txn.cursor(reader.tables["tokens"]) as cursor:
            frame = bytes(reader.stream.read(cursor, record.position, record.size, sample))
    file = store / "data.mdb"
    whole = file.read_bytes()
    assert whole.count(frame) >= 1
    file.write_bytes(whole.replace(frame, frame[:-1] + bytes([frame[-1] ^ 1])))


async def test_damage_is_named_where_it_is(run: Path, serve: Any) -> None:
    spoil(run / "store", f"0/{APPLES}/0")
    async with serve(run) as ask:
        _, answer = await ask(f"/api/prompts/{APPLES}")
        texts = [row["text"] for epoch in answer["epochs"] for row in epoch["samples"]]
        assert texts[0] is None
        assert all(texts[1:])
        assert "damaged" in answer["missing"]
        _, answer = await ask(f"/api/samples/0/{APPLES}/0")
        assert answer["pieces"] == []
        assert "damaged" in answer["missing"]
        assert (await ask(f"/api/samples/0/{APPLES}/1"))[1]["pieces"]
