"""Runs user code: async functions together on one event loop, sync ones one after another.

Sync functions run in the main thread, the only one in which `signal.alarm` works; the event loop has a thread of its
own. An async call that takes too long is
cancelled here. What cannot be cancelled is not ended here: the parent, which is told in which phase each request is,
kills the process. A child that user code forks ends where that code returns: it makes no other call.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rhymed_workers.environment.protocol import Phase

REQUEST: contextvars.ContextVar[int] = contextvars.ContextVar("request", default=0)
"""The number of the request for which this code runs."""

Told = Callable[[int, Phase], None]


class Exited(Exception):
    """User code raised what is no `Exception`, as SystemExit; its cause. asyncio would end the event loop."""


class TooLate(Exception):
    """An async call took longer than it may, and was cancelled."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine: a function, a partial, or an object that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    called = inspect.getattr_static(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


class Runner:
    """`tell` gets the phase of a request; it is called in any thread. `tidy` runs in the main thread: after each sync
    call, and when nothing is asked; async functions that wait are not waited for."""

    def __init__(self, timeout_s: float, tell: Told, tidy: Callable[[], None]) -> None:
        self._timeout_s, self._tell, self._tidy = timeout_s, tell, tidy
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop_thread = 0
        self._is_copy = False
        self.loop = asyncio.new_event_loop()

    def forked(self) -> None:
        """Called in a child that user code has forked. Jobs and other tasks are the parent's, and so is the event
        loop's selector, which the loop would change if it continued in the child."""
        self._is_copy = True
        self._tell = lambda number, phase: None
        self._jobs = queue.SimpleQueue()
        if threading.get_ident() == self._loop_thread:
            vars(self.loop)["_ready"].clear()  # asyncio has no public way to drop scheduled callbacks
            self.loop.stop()

    def _end_copy(self, error: BaseException | None = None) -> None:
        """Ends a forked child whose code has returned or raised, as Python would end a program."""
        if self._is_copy:
            code = (error.code or 0) if isinstance(error, SystemExit) else int(error is not None)
            os._exit(code if isinstance(code, int) else 1)

    async def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Raises what the function raises, or `Exited` or `TooLate`."""
        called = functools.partial(function, **arguments)
        if is_async(function):
            return await self._await(called)
        result = await self._queue(called)
        return await self._await(lambda: result) if inspect.isawaitable(result) else result

    async def _await(self, call: Callable[[], Any]) -> Any:
        """Reports the phase before the call, in which a function that is only marked as a coroutine function runs."""
        self._tell(REQUEST.get(), "async")
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                try:
                    result = await call()
                except BaseException as error:
                    self._end_copy(error)
                    raise
                self._end_copy()
                return result
        except TimeoutError:
            if limit.expired():
                raise TooLate(
                    f"took longer than {self._timeout_s:g} s (environment.timeout_s) and was cancelled"
                ) from None
            raise
        except Exception:
            raise
        except BaseException as error:
            raise Exited from error

    async def _queue(self, call: Callable[[], Any]) -> Any:
        number, done = REQUEST.get(), self.loop.create_future()
        self._tell(number, "queued")

        def job() -> None:
            self._tell(number, "sync")
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = call(), None
            except BaseException as error:  # SystemExit is user code's too
                outcome = None, error
            self._end_copy(outcome[1])
            self._tell(number, "queued")
            self.loop.call_soon_threadsafe(done.set_result, outcome)

        self._jobs.put(functools.partial(contextvars.copy_context().run, job))
        result, error = await done
        if error is None:
            return result
        if isinstance(error, Exception):
            raise error
        raise Exited from error

    def run(self) -> None:
        """In the main thread, until `stop`."""
        threading.Thread(target=self._run_loop, name="loop", daemon=True).start()
        while (job := self._jobs.get()) is not None:
            job()
            if job != self._tidy:
                self._tidy()

    def rested(self) -> None:
        """Nothing is asked any more for now."""
        self._jobs.put(self._tidy)

    def stop(self) -> None:
        self._jobs.put(None)

    def _run_loop(self) -> None:
        self._loop_thread = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:  # a task of the user's raised SystemExit
            self._end_copy()
            self.stop()
