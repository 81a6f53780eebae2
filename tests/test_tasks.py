from __future__ import annotations

import asyncio

from rhymed.tasks import watched


async def test_an_error_is_handed_on_and_a_cancellation_is_not() -> None:
    errors: list[BaseException] = []
    kept: set[asyncio.Task[object]] = set()

    async def fail() -> None:
        raise OSError("gone")

    failing, sleeping = watched(fail(), errors.append, kept), watched(asyncio.sleep(60), errors.append, kept)
    assert kept == {failing, sleeping}
    sleeping.cancel()
    await asyncio.wait({failing, sleeping})
    await asyncio.sleep(0)  # callbacks run after their task
    assert [str(error) for error in errors] == ["gone"]
    assert not kept
