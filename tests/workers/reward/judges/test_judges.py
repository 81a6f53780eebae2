"""Judges against a real server that answers well, slowly, badly, or not at all."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rhymed.core.config import Config
from rhymed.core.errors import RewardError
from rhymed_workers.reward.child import item
from rhymed_workers.reward.judges import Judges
from rhymed_workers.reward.pool import Pool
from rhymed_workers.reward.preview import preview
from tests.workers.reward.judges.servers import Handler, Server, says, serving, written

ROW = {"prompt": "2+2?", "answer": "4"}


def config(server: Server | str, **judge: Any) -> Config:
    url = server if isinstance(server, str) else server.url
    given = {"url": url, "model": "m", "timeout_s": 20.0, "patience_s": 10.0, **judge}
    return Config.model_validate({"reward": {"scorer": "judge", "judge": given}})


async def error_of(handler: Handler, **judge: Any) -> str:
    async with serving(handler) as server, Pool(config(server, **judge)) as pool:
        outcome = await pool.score(item("4", ROW))
        assert outcome.reward is None
        assert outcome.failed == "judge"
        return str(outcome.error)


async def test_many_samples_are_judged_at_the_same_time_without_a_process() -> None:
    async with serving(says("7", after_s=0.5)) as server, Pool(config(server, concurrency=64)) as pool:
        began = time.monotonic()
        outcomes = await asyncio.gather(*(pool.score(item(f"{number}", ROW)) for number in range(64)))
        assert time.monotonic() - began < 16  # one after the other: 32 s
        assert {outcome.reward for outcome in outcomes} == {0.7}
        assert server.busiest > 16
        assert pool.pids == []


async def test_no_more_requests_than_allowed() -> None:
    async with serving(says("7", after_s=0.05)) as server, Pool(config(server, concurrency=3)) as pool:
        await asyncio.gather(*(pool.score(item(f"{number}", ROW)) for number in range(20)))
        assert server.busiest == 3


async def test_judges_and_scorers_add_up_and_a_failed_scorer_asks_no_judge(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def picky(completions):\n    return [float(len(completions[0]) // (completions[0] != 'bad'))]\n"
    )
    async with serving(says("5")) as server:
        judged = {"scorer": "judge", "weight": 2.0, "judge": {"url": server.url, "model": "m"}}
        scorers = [judged, {"scorer": f"{tmp_path}/mine.py:picky"}]
        made = Config.model_validate({"reward": {"scorers": scorers, "processes": 1}})
        async with Pool(made) as pool:
            outcome = await pool.score(item("four", ROW))
            assert (outcome.reward, outcome.parts) == (5.0, {"judge": 0.5, "picky": 4.0})
            failed = await pool.score(item("bad", ROW))
            assert "ZeroDivisionError" in str(failed.error)
            assert (failed.failed, len(server.bodies)) == ("picky", 1)


async def test_answers_are_kept_and_shared() -> None:
    async with serving(says("7", after_s=0.05)) as server:
        async with Pool(config(server)) as pool:
            for _ in range(2):
                outcomes = await asyncio.gather(*(pool.score(item("4", ROW)) for _ in range(8)))
                assert {outcome.reward for outcome in outcomes} == {0.7}
                assert len(server.bodies) == 1
            assert pool.judges.stats()["reward/judge_cached"] == 15
            await pool.score(item("5", ROW))
            assert len(server.bodies) == 2
        async with Pool(config(server, cache=0)) as pool:
            await asyncio.gather(*(pool.score(item("4", ROW)) for _ in range(3)))
            assert len(server.bodies) == 5


async def test_the_request_of_a_cancelled_sample_answers_who_shares_it() -> None:
    answering = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await answering.wait()
        return written("7")

    async with serving(slow) as server, Pool(config(server)) as pool:
        first = asyncio.create_task(pool.score(item("4", ROW)))
        while not server.bodies:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(pool.score(item("4", ROW)))
        await asyncio.sleep(0.05)  # it waits for the first
        first.cancel()
        await asyncio.wait({first})
        answering.set()
        assert (await second).reward == 0.7
        assert len(server.bodies) == 1


async def test_the_oldest_answers_go() -> None:
    async with serving(says("7")) as server, Pool(config(server, cache=3)) as pool:
        for text in ("a", "b", "c", "d", "d", "a"):
            await pool.score(item(text, ROW))
        assert [body["messages"][0]["content"].partition("<response>\n")[2][0] for body in server.bodies] == list(
            "abcda"
        )


async def test_unreadable_is_an_error_that_is_counted_and_asked_again() -> None:
    answers = iter(["lovely", "8"])

    async def handler(request: web.Request, body: dict[str, Any]) -> web.Response:
        return written(next(answers))

    async with serving(handler) as server, Pool(config(server)) as pool:
        outcome = await pool.score(item("4", ROW))
        assert "one number is expected where its score is" in str(outcome.error)
        assert pool.judges.stats()["reward/judge_unreadable"] == 1
        assert (await pool.score(item("4", ROW))).reward == 0.8


async def test_a_storm_of_429_passes(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    async def handler(request: web.Request, body: dict[str, Any]) -> web.Response:
        text = json.dumps(body)
        seen[text] = seen.get(text, 0) + 1
        if seen[text] < 3:
            return web.Response(status=429 if seen[text] == 1 else 503, headers={"Retry-After": "0.1"}, text="busy")
        return written("7")

    async with serving(handler) as server, Pool(config(server, patience_s=60.0)) as pool:
        outcomes = await asyncio.gather(*(pool.score(item(f"{number}", ROW)) for number in range(30)))
        assert {outcome.reward for outcome in outcomes} == {0.7}
        assert pool.judges.stats()["reward/judge_repeats"] == 60


async def test_a_lost_connection_is_repeated() -> None:
    calls = 0

    async def handler(request: web.Request, body: dict[str, Any]) -> web.Response:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert request.transport is not None
            request.transport.close()
        return written("7")

    async with serving(handler) as server, Pool(config(server)) as pool:
        assert (await pool.score(item("4", ROW))).reward == 0.7


async def plain(status: int, text: str = "no", **headers: str) -> str:
    async def handler(request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    return await error_of(handler, patience_s=0.0)


async def test_failures_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    assert "answers 401: the API key is read from the variable JUDGE_API_KEY, which is not set" in await plain(401)
    assert "answers 404: it has no model 'm', or not the path of api = 'chat': gone" in await plain(404, "gone")
    assert "answers 400: too long" in await plain(400, "too long")
    assert "answers 500: ouch" in await plain(500, "ouch")
    assert "answers 521: away" in await plain(521, "away")
    assert "a redirect to http://elsewhere/: write the address" in await plain(307, Location="http://elsewhere/")
    assert "an answer that is not JSON" in await plain(200, "<html>")
    assert "an answer that is not JSON" in await plain(200, "[" * 100_000)
    assert "its answer is none of 'chat'" in await plain(200, "7")
    async with Pool(config("http://127.0.0.1:9/v1", patience_s=0.0)) as pool:
        outcome = await pool.score(item("4", ROW))
        assert "judge m at http://127.0.0.1:9/v1/chat/completions cannot be asked" in str(outcome.error)
    monkeypatch.setenv("JUDGE_API_KEY", "two\nlines")
    error = await plain(200)
    assert "cannot be asked: the variable JUDGE_API_KEY has what no API key can have" in error
    assert "lines" not in error


async def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-123")

    async def handler(request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.Response(
            status=403 if "deny" in json.dumps(body) else 400, text=f"bad {request.headers['Authorization']}"
        )

    async with serving(handler) as server, Pool(config(server, key_variable="MY_KEY")) as pool:
        errors = [str((await pool.score(item(text, ROW))).error) for text in ("deny", "4")]
    assert set(server.keys) == {"Bearer sk-secret-123"}
    assert "MY_KEY, which is refused" in errors[0]
    assert "answers 400: bad Bearer ..." in errors[1]
    assert not any("secret" in error for error in errors)


async def test_a_slow_answer_is_late_and_a_dripping_one_too() -> None:
    async def dripping(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    for handler in (says("7", after_s=30.0), dripping):
        began = time.monotonic()
        async with serving(handler) as server, Pool(config(server, timeout_s=0.5, patience_s=0.0)) as pool:
            outcome = await pool.score(item("4", ROW))
            assert "gave no answer within timeout_s = 0.5 s" in str(outcome.error)
            assert outcome.timeout
        assert time.monotonic() - began < 20


async def test_a_huge_answer_is_refused_before_it_is_held() -> None:
    sent = 0

    async def handler(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1 << 10):
            await response.write(b"x" * (1 << 20))
            sent += 1
        return response

    assert "gave an answer of more than 4 MiB" in await error_of(handler)
    assert sent < 100


async def test_a_row_without_a_column_of_the_rubric_is_unsuitable() -> None:
    async with serving(says("7")) as server, Pool(config(server, rubric="{response} {level}")) as pool:
        outcome = await pool.score(item("4", ROW))
        assert "the judge's rubric names {level}" in str(outcome.error)
        assert server.bodies == []


async def test_the_whole_of_a_sample_in_turns_can_be_judged() -> None:
    row = {**ROW, "environment_transcript": "call\nresult\n4"}
    async with serving(says("7")) as server, Pool(config(server, rubric="{environment_transcript}")) as pool:
        await pool.score(item("4", row))
        assert server.bodies[0]["messages"][0]["content"] == "call\nresult\n4"


@pytest.mark.parametrize(
    ("api", "answer", "path"),
    [
        ("classify", {"probs": [0.25]}, "/classify"),
        ("pooling", {"data": [[0.25]]}, "/pooling"),
        ("score", {"score": 0.25}, "/score"),
    ],
)
async def test_reward_models(api: str, answer: dict[str, Any], path: str) -> None:
    async def handler(request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response({"data": [{"index": 0, **answer}]})

    async with serving(handler) as server, Pool(config(server, api=api)) as pool:
        assert (await pool.score(item("4", ROW))).reward == 0.25
        assert server.paths == [path]


async def test_a_check_asks_and_says_what_is_wrong() -> None:
    async with serving(says("7")) as server:
        result = await asyncio.to_thread(preview, config(server), ROW, ["4", "5"])
        assert [verdict.reward for (verdict,) in result.verdicts] == [0.7, 0.7]
    with pytest.raises(RewardError, match=r"reward\.judge: judge m at http://127\.0\.0\.1:9/.* cannot be asked"):
        await asyncio.to_thread(preview, config("http://127.0.0.1:9/v1"), ROW, ["4"])


async def test_judges_by_index() -> None:
    made = Config.model_validate(
        {
            "reward": {
                "scorers": [{"scorer": "exact"}, {"scorer": "judge", "judge": {"url": "http://x", "model": "m"}}]
            }
        }
    )
    async with Judges(made) as judges:
        assert 1 in judges
        assert 0 not in judges
        assert judges.stats()["reward/judge_requests"] == 0
