from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import EngineError
from rhymed.core.messages import SampleId
from rhymed.histospec.drafts.yields import accepted
from rhymed_workers.engines.base import DraftReport, Output, Task, sampling_for
from rhymed_workers.engines.trace import TraceBook, TraceEngine
from rhymed_workers.sessions.calls import hermes


def config(limit: int = 512, slots: int = 64, **trace: object) -> Config:
    return Config.model_validate(
        {"rollout": {"engine": "trace", "max_response_length": limit, "max_concurrency": slots}, "trace": trace}
    )


def book_of(settings: Config) -> TraceBook:
    return TraceBook(settings.trace, settings.rollout)


def engine_of(settings: Config) -> TraceEngine:
    return TraceEngine(settings.trace, settings.rollout)


def task(settings: Config, id: SampleId, carried: Sequence[int] = ()) -> Task:
    return Task(id, [1, 2, 3], sampling_for(settings.rollout, settings.eval, settings.run.seed, id), carried)


def test_a_response_is_a_function_of_the_sample_alone() -> None:
    id = SampleId(step=3, prompt="00ff00ff00ff00ff", index=2)
    tokens, logprobs, reason = book_of(config()).response(id)
    code = (
        "from rhymed.core.config import Config; from rhymed.core.messages import SampleId;"
        " from rhymed_workers.engines.trace import TraceBook;"
        " book = TraceBook(Config().trace, Config().rollout);"
        " t, p, r = book.response(SampleId(step=3, prompt='00ff00ff00ff00ff', index=2));"
        " print(t.tolist(), p.tolist(), r)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == f"{tokens.tolist()} {logprobs.tolist()} {reason}"
    assert len(tokens) == len(logprobs)
    assert (logprobs <= 0).all()


def test_turns_call_tools_each_with_a_key_of_its_own_until_the_last() -> None:
    book, keys, last = book_of(config(limit=100_000, mean_length=5, tools=["add", "look"], turns=2.0)), set[str](), 0
    for number in range(100):
        id = SampleId(step=0, prompt=f"{number:016x}", index=0)
        tokens, _, reason = book.response(id, 256)
        calls, malformed, _ = hermes(bytes(int(token) for token in tokens if token < 256).decode(errors="replace"))
        assert (malformed, reason) == ("", "stop")
        assert {call.name for call in calls} <= {"add", "look"}
        keys |= {str(call.arguments["key"]) for call in calls}
        last += not calls
        assert all(str(call.arguments["key"]).startswith(f"{id}/100/") for call in calls)
    assert 30 < last < 70
    assert len(keys) > 50


def test_samples_differ_and_lengths_follow_the_configuration() -> None:
    book = book_of(config(limit=100_000, mean_length=100, prompt_sigma=0.5, sample_sigma=0.1))
    lengths = [
        [len(book.response(SampleId(step=step, prompt=f"{prompt:016x}", index=0))[0]) for step in range(4)]
        for prompt in range(200)
    ]
    middles = sorted(sum(row) / len(row) for row in lengths)
    assert 80 < middles[100] < 125  # the median prompt
    assert middles[-10] > 1.5 * middles[100]  # prompts differ
    assert all(max(row) < 2 * min(row) for row in lengths)  # a prompt is of one kind in all its steps


def test_length_limit_cuts_and_says_so() -> None:
    book = book_of(config(limit=5, mean_length=200))
    tokens, logprobs, reason = book.response(SampleId(step=0, prompt="0" * 16, index=0))
    assert (len(tokens), len(logprobs), reason) == (5, 5, "length")


def test_no_torch_is_imported() -> None:
    heavy = "{'torch', 'vllm', 'transformers'}"
    code = (
        f"import sys, rhymed_workers.engines.trace, rhymed_workers.rollout.worker; print({heavy} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


async def test_engine_runs_batches_and_records_versions() -> None:
    settings = config(limit=40, slots=3, mean_length=30, sample_sigma=0, prompt_sigma=0, step_s=0.001, token_s=0)
    engine = engine_of(settings)
    await engine.open()
    try:
        await engine.load(0, Path("unused"))
        ids = [SampleId(step=0, prompt="a" * 16, index=index) for index in range(5)]
        waits = [asyncio.ensure_future(engine.generate(task(settings, id))) for id in ids]
        while not any(count > 2 for count in engine.progress().values()):
            await asyncio.sleep(0.001)
        assert sorted(count > 0 for count in engine.progress().values()) == [False, False, True, True, True]
        await engine.load(1, Path("unused"))
        outputs = await asyncio.gather(*waits)
    finally:
        await engine.close()
    assert engine.progress() == {}
    assert engine.version == 1
    for output in outputs:
        assert sum(count for _, count in output.versions) == len(output.tokens) == 30
        assert output.finish_reason == "stop"
    assert [version for version, _ in outputs[0].versions] == [0, 1]
    assert outputs[4].versions == [(1, 30)]


async def test_cancel_ends_with_what_there_is() -> None:
    settings = config(limit=10_000, slots=1, mean_length=5000, prompt_sigma=0, step_s=0.001, token_s=0)
    engine = engine_of(settings)
    await engine.open()
    try:
        running, waiting = (SampleId(step=0, prompt="b" * 16, index=index) for index in range(2))
        tasks = [asyncio.ensure_future(engine.generate(task(settings, id))) for id in (running, waiting)]
        while not engine.progress().get(running):
            await asyncio.sleep(0.001)
        engine.cancel(waiting)
        engine.cancel(running)
        engine.cancel(SampleId(step=9, prompt="c" * 16, index=0))
        first, second = await asyncio.gather(*tasks)
    finally:
        await engine.close()
    assert (first.finish_reason, second.finish_reason) == ("abort", "abort")
    assert 0 < len(first.tokens) < 5000
    assert len(second.tokens) == 0


class Hurried(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer: what it tells is what was waited for, on any machine."""

    def __init__(self) -> None:
        super().__init__()
        self._now, wait = 0.0, self._selector.select

        def select(timeout: float | None) -> list[Any]:
            events = wait(0 if timeout else timeout)
            self._now += timeout if timeout and not events else 0.0
            return events

        self._selector.select = select

    def time(self) -> float:
        return self._now


def verified(settings: Config, ids: Sequence[SampleId], cut: int) -> tuple[list[Output], float]:
    with asyncio.Runner(loop_factory=Hurried) as runner:
        return runner.run(verifying(settings, ids, cut))


async def verifying(
    settings: Config, ids: Sequence[SampleId], cut: int, version: int = 1
) -> tuple[list[Output], float]:
    """What becomes of the first `cut` tokens of each, and how many seconds it takes."""
    engine, book = engine_of(settings), book_of(settings)
    await engine.open()
    try:
        await engine.load(version, Path("unused"))
        began = asyncio.get_running_loop().time()
        jobs = [task(settings, id, book.response(id)[0][:cut].tolist()) for id in ids]
        outputs = await asyncio.gather(*(engine.generate(job) for job in jobs))
        return outputs, asyncio.get_running_loop().time() - began
    finally:
        await engine.close()


def long(keep: float = 1.0, **trace: float) -> Config:
    """Responses of 400 tokens."""
    cost = {"step_s": 0.001, "token_s": 0.0, "verify_s": 0.0, **trace}
    return config(limit=1000, mean_length=400, sample_sigma=0, prompt_sigma=0, keep=keep, **cost)


IDS = [SampleId(step=0, prompt="d" * 16, index=index) for index in range(16)]


async def test_accepted_drafts_are_those_carried_tokens_that_held() -> None:
    settings, (id, other) = long(step_s=0), IDS[:2]
    engine = engine_of(settings)
    await engine.open()
    try:
        await engine.load(1, Path("unused"))
        tokens = book_of(settings).response(id)[0].tolist()
        for carried in (0, 1, 300, 400):
            await engine.generate(task(settings, id, tokens[:carried]))
            (report, nothing) = await engine.drafting([id, other])
            assert (report.drafting, nothing) == (None, DraftReport())
            assert accepted(report.yields, 400).tolist() == [place < carried for place in range(400)]
        assert await engine.drafting([id]) == [DraftReport()], "a report is given once"
    finally:
        await engine.close()


def test_carried_tokens_are_verified_and_not_written() -> None:
    whole, whole_s = verified(long(step_s=0.01), IDS, 400)
    part, part_s = verified(long(step_s=0.01), IDS, 300)
    assert (whole_s, part_s) == pytest.approx((0.01, 1.0))  # 1 and 100 forward passes; it would be 400
    for id, one, other in zip(IDS, whole, part, strict=True):
        tokens, logprobs, reason = book_of(long()).response(id)
        for output in (one, other):
            assert output.tokens.tolist() == tokens.tolist()
            assert output.logprobs.tolist() == logprobs.tolist()
            assert (output.finish_reason, output.versions) == (reason, [(1, 400)])


def test_verifying_takes_its_time() -> None:
    _, seconds = verified(long(verify_s=0.0005), IDS[:2], 400)
    assert seconds == pytest.approx(0.001 + 2 * 400 * 0.0005)


async def test_tokens_of_another_response_are_not_kept() -> None:
    settings = long()
    engine = engine_of(settings)
    await engine.open()
    try:
        tokens = book_of(settings).response(IDS[0])[0]
        other = np.concatenate([tokens[:100], tokens[:900]]).tolist()  # and more than there are
        wait = asyncio.ensure_future(engine.generate(task(settings, IDS[0], other)))
        while not engine.progress().get(IDS[0]):
            await asyncio.sleep(0)
        assert engine.progress()[IDS[0]] == 101  # one comes with them
        assert (await wait).tokens.tolist() == tokens.tolist()
    finally:
        await engine.close()


async def kept(keep: float, version: int) -> list[int]:
    """Of each sample's 400 tokens: what the first pass leaves, without the token that comes with them."""
    settings = long(keep, step_s=0.2)
    engine, book = engine_of(settings), book_of(settings)
    await engine.open()
    try:
        await engine.load(version, Path("unused"))
        waits = [
            asyncio.ensure_future(engine.generate(task(settings, id, book.response(id)[0].tolist()))) for id in IDS
        ]
        while engine.progress() == {} or not all(engine.progress().values()):
            await asyncio.sleep(0.002)
        for id in IDS:
            engine.cancel(id)
        return [len(output.tokens) - 1 for output in await asyncio.gather(*waits)]
    finally:
        await engine.close()


async def test_what_is_kept_is_drawn_from_sample_and_version() -> None:
    first, again, other = [await kept(0.95, version) for version in (1, 1, 2)]
    assert first == again
    assert first != other
    assert len(set(first)) > 8
    assert 8 < sum(first + other) / 32 < 40  # 19 on average
    assert await kept(0.0, 1) == [0] * 16


async def test_a_cancelled_sample_goes_on_elsewhere() -> None:
    settings = long()
    engine, expected = engine_of(settings), book_of(settings).response(IDS[0])
    await engine.open()
    try:
        wait = asyncio.ensure_future(engine.generate(task(settings, IDS[0])))
        while engine.progress().get(IDS[0], 0) < 100:
            await asyncio.sleep(0.001)
        engine.cancel(IDS[0])
        partial = await wait
        await engine.load(3, Path("unused"))
        whole = await engine.generate(task(settings, IDS[0], partial.tokens.tolist()))
    finally:
        await engine.close()
    assert (partial.finish_reason, whole.finish_reason) == ("abort", "stop")
    assert 100 <= len(partial.tokens) < 400
    assert whole.tokens.tolist() == expected[0].tolist()
    assert whole.versions == [(3, 400)]


async def test_seconds_are_of_the_passes_that_there_were() -> None:
    settings = config(limit=20, slots=2, mean_length=20, sample_sigma=0, prompt_sigma=0, step_s=0.005, verify_s=0.001)
    engine = engine_of(settings)
    await engine.open()
    try:
        await engine.load(0, Path("unused"))
        assert sum(engine.seconds().values()) == 0
        began = time.monotonic()
        id = SampleId(step=0, prompt="a" * 16, index=0)
        tokens = (await engine.generate(task(settings, id))).tokens
        assert engine.seconds().keys() == {"decode"}
        await engine.generate(task(settings, id, carried=tokens[:10].tolist()))
        seconds, passed = engine.seconds(), time.monotonic() - began
        assert seconds.keys() == {"decode", "verify"}
        assert 0.005 * 20 <= seconds["decode"] <= sum(seconds.values()) <= passed
        assert seconds["verify"] >= 0.005 + 10 * 0.001
        while engine.seconds() != engine.seconds():
            await asyncio.sleep(0.001)
    finally:
        await engine.close()


async def test_a_sleeping_engine_makes_no_token_and_goes_on_with_the_next_weights() -> None:
    settings = long()
    engine, expected = engine_of(settings), book_of(settings).response(IDS[0])
    await engine.open()
    try:
        await engine.load(1, Path("unused"))
        wait = asyncio.ensure_future(engine.generate(task(settings, IDS[0])))
        while engine.progress().get(IDS[0], 0) < 100:
            await asyncio.sleep(0.001)
        await engine.sleep()
        before = engine.progress()[IDS[0]]
        await asyncio.sleep(0.1)
        assert engine.progress()[IDS[0]] == before
        idle = engine.seconds()
        await asyncio.sleep(0.05)
        assert engine.seconds() == idle
        await engine.load(2, Path("unused"))
        output = await wait
    finally:
        await engine.close()
    assert output.tokens.tolist() == expected[0].tolist()
    assert output.versions == [(1, before), (2, 400 - before)]


async def test_samples_do_not_wait_for_an_engine_that_has_stopped(monkeypatch) -> None:
    settings = config()
    engine = engine_of(settings)
    monkeypatch.setattr(engine, "_advance", lambda: 1 / 0)
    await engine.open()
    first, second = (SampleId(step=0, prompt="00ff00ff00ff00ff", index=index) for index in range(2))
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match="the trace engine stopped: ZeroDivisionError"):
            await engine.generate(task(settings, first))
        with pytest.raises(EngineError):
            await engine.generate(task(settings, second))
    await engine.close()
