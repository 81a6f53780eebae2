import asyncio

import pytest

from rhymed_workers.environment.hosting import runner
from rhymed_workers.environment.hosting.runner import Runner


@pytest.mark.parametrize("sync", [False, True])
async def test_that_code_of_a_call_begins_is_reported_before_it_does(
    monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    """Also where a function is only marked as a coroutine function, as `inspect.markcoroutinefunction` does."""
    monkeypatch.setattr(runner, "is_async", lambda function: not sync)
    seen = []

    async def rest(key: str) -> str:
        await asyncio.sleep(0)
        return key

    def spend(key: str):
        seen.append("called")
        return rest(key)

    one = Runner(5.0, lambda number, phase: seen.append(phase), lambda: None)
    one.loop.close()
    one.loop = asyncio.get_running_loop()
    if not sync:
        assert await one.call(spend, {"key": "a"}) == "a"
        assert seen == ["async", "called"]
        return
    asked = asyncio.create_task(one.call(spend, {"key": "a"}))
    job = await asyncio.to_thread(one._jobs.get)
    assert job is not None
    await asyncio.to_thread(job)
    assert await asked == "a"
    assert seen == ["queued", "sync", "called", "queued", "async"]
