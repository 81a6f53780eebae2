"""The client against a real HTTP server, with everything that such a server does wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from rhymed.core.config import Teacher
from rhymed.core.errors import TrainerError
from rhymed_workers.trainer.teacher import remote
from rhymed_workers.trainer.teacher.remote import RemoteTeacher, Scored
from tests.workers.trainer.teacher.servers import TeacherServer, logprob, serving

SEQUENCES = [(np.arange(5, 9 + number), np.arange(20, 23 + 2 * number)) for number in range(6)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 0.01)
    monkeypatch.delenv("TEACHER_API_KEY", raising=False)


def score(server: TeacherServer, topk: int = 0, **settings: Any) -> list[Scored]:
    with serving(server) as url:
        config = Teacher(url=url, **{"patience_s": 0.0, **settings})
        return RemoteTeacher(config, "teacher").score(SEQUENCES, topk)


def failing(times: int, reply: Callable[[], web.Response]) -> TeacherServer:
    """The first `times` answers are these."""
    left = [times]

    async def fail(request: web.Request, body: dict[str, Any]) -> web.Response | None:
        left[0] -= 1
        return reply() if left[0] >= 0 else None

    return TeacherServer(reply=fail)


def test_the_log_probs_of_the_responses_come_back_in_order() -> None:
    found = score(TeacherServer())
    for (prompt, response), scored in zip(SEQUENCES, found, strict=True):
        expected = [logprob(len(prompt) + place, int(token)) for place, token in enumerate(response)]
        assert scored.logprobs_N.tolist() == pytest.approx(expected)
        assert scored.ids_NK.shape == (len(response), 0)


def test_topk_are_the_likeliest_tokens_best_first_without_doubles() -> None:
    scored = score(TeacherServer(), topk=3)[0]
    place, token = len(SEQUENCES[0][0]), int(SEQUENCES[0][1][0])
    given = {other: logprob(place, other) for other in (*range(3), token)}
    best = sorted(given, key=lambda other: (-given[other], other))[:3]
    assert scored.ids_NK[0].tolist() == best
    assert scored.topk_NK[0].tolist() == pytest.approx([given[other] for other in best])


def test_requests_run_at_the_same_time_up_to_the_limit() -> None:
    async def slow(request: web.Request, body: dict[str, Any]) -> None:
        async with asyncio.timeout(60):
            while server.busiest < 3:
                await asyncio.sleep(0.01)

    server = TeacherServer(reply=slow)
    score(server, concurrency=3)
    assert server.busiest == 3
    assert all(body["temperature"] == 1 and body["max_tokens"] == 1 for body in server.asked)


def test_the_key_is_sent_and_reported_to_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", "very-secret-key")
    server = TeacherServer()
    score(server, key_variable="MY_KEY")
    assert set(server.keys) == {"Bearer very-secret-key"}
    refusing = failing(99, lambda: web.Response(status=401, text="who are you?"))
    with pytest.raises(TrainerError, match=r"answers 401: put the API key into .* MY_KEY") as error:
        score(refusing, key_variable="MY_KEY")
    assert "very-secret-key" not in str(error.value) + caplog.text


@pytest.mark.parametrize("state", [500, 503, 429])
def test_what_may_pass_is_repeated(state: int) -> None:
    server = failing(3, lambda: web.Response(status=state, text="not now"))
    assert len(score(server, patience_s=60.0)) == len(SEQUENCES)
    assert len(server.asked) == len(SEQUENCES) + 3


def test_patience_ends() -> None:
    with pytest.raises(TrainerError, match="answers 500: out of memory"):
        score(failing(99, lambda: web.Response(status=500, text="out of memory")), patience_s=0.05)


def test_a_request_that_is_wrong_is_not_repeated() -> None:
    server = failing(1, lambda: web.Response(status=400, text="Token id 99999 is out of vocabulary"))
    with pytest.raises(TrainerError, match=r"answers 400: .*out of vocabulary"):
        score(server, patience_s=60.0, concurrency=1)
    assert len({tuple(body["prompt"]) for body in server.asked}) == len(server.asked)


def test_a_server_that_never_answers_is_given_up() -> None:
    async def hang(request: web.Request, body: dict[str, Any]) -> None:
        await asyncio.sleep(600)

    with pytest.raises(TrainerError, match=r"no answer within trainer.teacher.timeout_s = 0.2 s"):
        score(TeacherServer(reply=hang), timeout_s=0.2)


def test_a_server_that_hangs_does_not_keep_the_trainer_from_stopping() -> None:
    async def hang(request: web.Request, body: dict[str, Any]) -> None:
        await asyncio.sleep(600)

    calls = []

    def stop(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) > 1:
            raise TrainerError("stopped in the middle of a step")

    with serving(TeacherServer(reply=hang)) as url, pytest.raises(TrainerError, match="stopped in the middle"):
        RemoteTeacher(Teacher(url=url), "teacher").score(SEQUENCES, 0, stop)


def test_a_server_that_is_not_there() -> None:
    with serving(TeacherServer()) as url:
        pass
    with pytest.raises(TrainerError, match=r"teacher http://127.0.0.1.*/completions: Cannot connect"):
        RemoteTeacher(Teacher(url=url, patience_s=0.0), "teacher").score(SEQUENCES, 0)


def wrong(change: Callable[[dict[str, Any]], Any]) -> TeacherServer:
    """Its answers, changed."""

    async def reply(request: web.Request, body: dict[str, Any]) -> web.Response:
        answer = TeacherServer().answer(body)
        return web.json_response(change(answer) or answer)

    return TeacherServer(reply=reply)


def last(answer: dict[str, Any], row: Any) -> None:
    answer["choices"][0]["prompt_logprobs"][-1] = row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer: {"choices": []}, "its answer has no prompt_logprobs"),
        (lambda answer: {"error": "?"}, "its answer has no prompt_logprobs"),
        (lambda answer: answer["choices"][0].update(prompt_logprobs=None), "other log-probs than asked for"),
        (lambda answer: answer["choices"][0]["prompt_logprobs"].append(None), "other log-probs than asked for"),
        (lambda answer: answer["choices"][0]["prompt_token_ids"].append(7), "other log-probs than asked for"),
        (lambda answer: last(answer, None), "no log-prob of token"),
        (lambda answer: last(answer, {"3": {"logprob": -1.0}}), "no log-prob of token"),
        (lambda answer: last(answer, {"x": {"logprob": -1.0}}), "no log-prob of token"),
    ],
)
def test_other_answers_than_asked_for_are_refused(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        score(wrong(change))


def test_logits_are_not_taken_for_log_probs() -> None:
    def logits(answer: dict[str, Any]) -> None:
        for row in answer["choices"][0]["prompt_logprobs"][1:]:
            for about in row.values():
                about["logprob"] = 12.5

    with pytest.raises(TrainerError, match=r"gave 12\.5 as a log-prob"):
        score(wrong(logits))


def test_an_answer_that_is_no_json() -> None:
    with pytest.raises(TrainerError, match="its answer is not JSON"):
        score(failing(99, lambda: web.Response(text="<html>")))
