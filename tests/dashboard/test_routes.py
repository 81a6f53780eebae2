"""Every route, over a real server and a real folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rhymed.run.timeline import FAILED, Event, Writer
from rhymed_store.database.tables import Reader
from rhymed_store.inspect.browse import Browse
from tests.dashboard.folders import NOW, queues, row
from tests.history.folders import APPLES, PEARS


async def test_a_run_that_is_over(run: Path, look: Any) -> None:
    async with look(run) as ask:
        status, told = await ask("/api/run")
        assert status == 200
        assert (told["name"], told["live"], told["state"], told["step"], told["steps"]) == (
            "watched", False, "finished", 4, 4,
        )  # fmt: skip
        assert told["started"] == NOW - 1.0
        assert told["config"]["rollout"]["group_size"] == told["group_size"] == 8
        assert told["versions"]["rhymed"]
        assert "secret" not in json.dumps(told)
        assert await ask("/api/queues") == (200, None)
        assert (await ask("/metrics"))[0] == 503
        assert await ask("/health") == (200, "ok")


async def test_a_run_that_lives(run: Path, look: Any) -> None:
    async with look(run, queues) as ask:
        _, told = await ask("/api/run")
        assert (told["live"], told["state"], told["step"], told["version"]) == (True, "running", 2, 2)
        _, told = await ask("/api/queues")
        assert told["workers"][0]["holding"] == [
            {"id": {"step": 2, "prompt": APPLES, "index": 0}, "tokens": 7, "parked": False, "seconds": 0.0}
        ]
        assert told["troubles"] == []  # what is left out on the wire is there
        status, text = await ask("/metrics")
        assert status == 200
        assert 'rhymed_up{run="watched"} 1' in text


async def test_many_who_look_are_one_question(run: Path, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed.dashboard.snapshots.FRESH_S", 1000.0)
    asked = []

    def told() -> Any:
        asked.append(1)
        return queues()

    async with look(run, told) as ask:
        for _ in range(5):
            await ask("/api/queues")
        assert len(asked) == 1


async def test_steps(run: Path, look: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            'not JSON\n[1]\n{"step": "x"}\n{"step": 9, "odd": "\\ud800"}\n'
            + json.dumps(row(3, odd=float("nan"), again=1.0))
            + "\n"
            + '{"step":'
        )
    async with look(run) as ask:
        _, told = await ask("/api/steps")
        assert [one["step"] for one in told["steps"]] == [0, 1, 2, 3]
        assert told["steps"][3]["again"] == 1.0  # trained again: the last row counts
        assert told["steps"][3]["odd"] is None
        assert told["evaluations"][0]["val/held/acc/mean@1"] == 0.5
        assert [(one["epoch"], one["steps"]) for one in told["epochs"]] == [(0, 2), (1, 2)]
        _, told = await ask("/api/steps?after=2")
        assert [one["step"] for one in told["steps"]] == [3]
        (run / "metrics.jsonl").write_text(json.dumps(row(0)) + "\n")  # another, shorter file
        _, told = await ask("/api/steps")
        assert [one["step"] for one in told["steps"]] == [0]


async def test_the_timeline(run: Path, look: Any) -> None:
    async with look(run) as ask:
        _, told = await ask("/api/timeline")
        assert [one["t"] - NOW for one in told["spans"]] == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert told["spans"][0]["in"] == {"decode": 0.75, "idle": 0.25}
        assert told["events"] == [{"t": NOW, "event": "begun", "step": 0}]
        assert told["activities"]["decode"].startswith("#")
        _, told = await ask(f"/api/timeline?since={NOW + 3}")
        assert [one["t"] - NOW for one in told["spans"]] == [4.0, 5.0]


async def test_lengths(run: Path, look: Any) -> None:
    async with look(run) as ask:
        _, told = await ask("/api/lengths")
        first, second = told["epochs"]
        assert (first["epoch"], second["epoch"]) == (0, 1)
        assert first["edges"] == second["edges"]
        assert len(first["edges"]) == len(first["counts"]) + 1
        assert sum(first["counts"]) == sum(second["counts"]) == 4
        assert (first["mean"], first["max"]) == (15.5, 21)


async def test_prompts(run: Path, look: Any) -> None:
    async with look(run) as ask:
        _, told = await ask("/api/prompts")
        assert told["total"] == 2
        assert [one["id"] for one in told["prompts"]] == sorted([APPLES, PEARS])
        apples = next(one for one in told["prompts"] if one["id"] == APPLES)
        assert apples["text"] == "how many apples are there?"
        assert (apples["samples"], apples["epochs"], apples["length"], apples["reward"]) == (4, 2, 10.5, 0.625)
        assert apples["spread"] == pytest.approx(0.4146, abs=1e-4)
        _, told = await ask("/api/prompts?sort=length")
        assert [one["id"] for one in told["prompts"]] == [PEARS, APPLES]
        _, told = await ask("/api/prompts?sort=length&order=asc&limit=1&offset=1")
        assert (told["total"], [one["id"] for one in told["prompts"]]) == (2, [PEARS])
        _, told = await ask("/api/prompts", params={"query": "many  PEARS"})
        assert [one["id"] for one in told["prompts"]] == [PEARS]
        _, told = await ask(f"/api/prompts?query={APPLES[:6]}")
        assert [one["id"] for one in told["prompts"]] == [APPLES]


async def test_one_prompt(run: Path, look: Any) -> None:
    async with look(run) as ask:
        _, told = await ask(f"/api/prompts/{APPLES}")
        assert (told["id"], told["text"], told["missing"]) == (APPLES, "how many apples are there?", "")
        assert [(one["epoch"], one["step"], one["name"]) for one in told["epochs"]] == [
            (0, 0, "epoch 0"), (1, 2, "epoch 1"),
        ]  # fmt: skip
        first, second = told["epochs"][0]["samples"]
        assert first["id"] == f"0/{APPLES}/0"
        assert first["text"] == "GHIJKLMNOP"
        assert first["versions"] == [[0, 10]]
        assert (second["state"], second["reason"], second["reward"]) == ("dropped", "scorer timed out", 0.5)


async def test_one_sample(run: Path, look: Any) -> None:
    async with look(run) as ask:
        _, told = await ask(f"/api/samples/2/{APPLES}/0")
        assert (told["id"], told["epoch"], told["length"]) == (f"2/{APPLES}/0", 1, 10)
        assert told["prompt"] == "how many apples are there?"
        assert told["pieces"] == [{"text": "GHIJK", "drafted": True}, {"text": "LMNOy", "drafted": False}]
        assert told["missing"] == ""


async def test_the_store(run: Path, look: Any) -> None:
    async with look(run) as ask:
        _, told = await ask("/api/store")
        assert (told["samples"], told["limit_bytes"], told["missing"]) == (8, 8 << 30, "")
        assert told["tokens"] == sum(10 + 10 * pears + index for pears in (0, 1) for index in (0, 1) for _ in (0, 1))
        assert told["used_bytes"] > 0


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
        ("/api/steps?after=x", 400),
        ("/api/timeline?since=nan", 400),
        ("/api/timeline?since=-1e300", 400),
        ("/api/prompts?sort=size", 400),
        ("/api/prompts?order=up", 400),
        ("/api/prompts?offset=-1", 400),
        ("/api/prompts?limit=99999999999999999999", 400),
        ("/events?after=x", 400),
        ("/api/nothing", 404),
        ("/nothing", 404),
    ],
)
async def test_what_is_wrong_is_told_in_a_sentence(run: Path, look: Any, path: str, status: int) -> None:
    async with look(run) as ask:
        found, told = await ask(path)
        assert found == status
        assert told["error"]
        assert (await ask("/api/run"))[0] == 200


async def test_only_get(run: Path, look: Any) -> None:
    async with look(run) as ask, ask.session.post(ask.url + "/api/run", data=b"x" * 100_000) as response:
        assert response.status == 405
        assert "error" in await response.json()


async def test_a_long_answer_is_compressed(run: Path, look: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row(step)) + "\n" for step in range(4, 200))
    async with look(run) as ask:
        plainly = await ask("/api/steps", headers={"Accept-Encoding": "identity"})
        url, headers = ask.url + "/api/steps", {"Accept-Encoding": "gzip"}
        async with ask.session.get(url, headers=headers) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert (200, await response.json()) == plainly


# -- files ------------------------------------------------------------------------------------------------------


async def test_the_page_and_its_files(run: Path, look: Any) -> None:
    async with look(run) as ask:
        for path, kind in (("/", "text/html"), ("/static/vendor/uplot/uPlot.esm.js", "text/javascript")):
            async with ask.session.get(ask.url + path) as response:
                assert (response.status, response.content_type) == (200, kind)
                assert response.headers["Cache-Control"] == "no-cache"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                tag = response.headers["ETag"]
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
        "/static/index.html%00",
        "/static/" + "x" * 5000,
        "/../../etc/passwd",
    ],
)
async def test_nothing_else_is_served(run: Path, look: Any, path: str) -> None:
    async with look(run) as ask:
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


async def test_a_run_that_has_not_begun(bare: Path, look: Any) -> None:
    async with look(bare) as ask:
        _, told = await ask("/api/run")
        assert (told["state"], told["step"], told["steps"], told["missing"]) == ("stopped", 0, 4, "")
        assert await ask("/api/steps") == (200, {"steps": [], "evaluations": [], "epochs": []})
        _, told = await ask("/api/timeline")
        assert (told["spans"], told["events"]) == ([], [])


async def test_who_failed_has_not_finished(bare: Path, look: Any) -> None:
    async with look(bare) as ask:
        for text, state in ((f"{FAILED}the store is full", "stopped"), ("nothing to train: evaluated", "finished")):
            writer = Writer(bare)
            writer.write([Event(t=NOW + (state == "finished"), event="finished", text=text)])
            writer.close()
            assert (await ask("/api/run"))[1]["state"] == state


async def test_trained_steps_without_their_rows_are_told_of(run: Path, look: Any) -> None:
    (run / "metrics.jsonl").unlink()
    writer = Writer(run)
    writer.write([Event(t=NOW + 9 + step, event="trained", step=step) for step in range(4)])
    writer.close()
    async with look(run) as ask:
        _, told = await ask("/api/run")
        assert (told["state"], told["step"]) == ("finished", 4)
        assert told["missing"].startswith("metrics.jsonl is not in the run's folder")
    for step, missing in ((1, False), (2, True)):  # of one that lives, the first row may be on its way
        async with look(run, lambda step=step: queues(step=step)) as ask:
            assert bool((await ask("/api/run"))[1]["missing"]) == missing


async def test_a_folder_without_store(run: Path, look: Any) -> None:
    (run / "store" / "data.mdb").unlink()
    async with look(run) as ask:
        for path in ("lengths", "prompts", f"prompts/{APPLES}", f"samples/0/{APPLES}/0"):
            status, told = await ask(f"/api/{path}")
            assert status == 404
            assert "on this machine" in told["error"]
        _, told = await ask("/api/store")
        assert (told["samples"], told["used_bytes"], told["tokens"]) == (8, 1000, None)  # as the run told it last
        assert "on this machine" in told["missing"]
        assert (await ask("/api/steps"))[0] == 200


async def test_an_empty_folder(tmp_path: Path, look: Any) -> None:
    async with look(tmp_path) as ask:
        for path in ("run", "queues", "steps", "timeline", "store"):
            assert (await ask(f"/api/{path}"))[0] == 200


async def test_a_configuration_that_is_none(run: Path, look: Any) -> None:
    (run / "config.json").write_text('["not", "ours"]')
    async with look(run) as ask:
        _, told = await ask("/api/run")
        assert (told["name"], told["config"], told["steps"]) == ("watched", {}, None)
        status, told = await ask(f"/api/samples/0/{APPLES}/0")
        assert status == 200
        assert told["pieces"][0]["text"].startswith("40 41 42 ")  # without a model, ids
        assert "model is not known" in told["missing"]


async def test_a_store_that_is_cut(run: Path, look: Any) -> None:
    file = run / "store" / "data.mdb"
    os.truncate(file, 3 * 4096)
    async with look(run) as ask:
        status, told = await ask("/api/prompts")
        assert status == 500
        assert "was cut" in told["error"]
        assert (await ask("/api/run"))[0] == 200
        assert "was cut" in (await ask("/api/store"))[1]["missing"]


async def test_a_store_that_is_mended_is_seen(run: Path, look: Any) -> None:
    file = run / "store" / "data.mdb"
    whole = file.read_bytes()
    async with look(run) as ask:
        file.write_bytes(whole[: 3 * 4096])
        assert (await ask("/api/prompts"))[0] == 500
        file.write_bytes(whole)
        assert (await ask("/api/prompts"))[0] == 200
        other = file.with_name("other")
        other.write_bytes(whole)
        other.replace(file)  # as `rhymed history repair` does
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


async def test_damage_is_told_where_it_is(run: Path, look: Any) -> None:
    spoil(run / "store", f"0/{APPLES}/0")
    async with look(run) as ask:
        _, told = await ask(f"/api/prompts/{APPLES}")
        texts = [one["text"] for epoch in told["epochs"] for one in epoch["samples"]]
        assert texts[0] is None
        assert all(texts[1:])
        assert "damaged" in told["missing"]
        _, told = await ask(f"/api/samples/0/{APPLES}/0")
        assert told["pieces"] == []
        assert "damaged" in told["missing"]
        assert (await ask(f"/api/samples/0/{APPLES}/1"))[1]["pieces"]
