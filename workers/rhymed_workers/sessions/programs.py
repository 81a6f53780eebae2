"""All samples whose programs run in this worker: begins, answers and ends them.

What the worker asks is what it asks for tools and environments (rhymed_workers.environment.actor): answer the
sample's last turn. Here that is to let its program go on until it needs the policy, or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from pathlib import Path
from typing import Self

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentFailed, EnvironmentUnusable
from rhymed.core.run.edited import compare
from rhymed.core.service.retry import retry
from rhymed.inputs.render import options_of
from rhymed_store.client import StoreClient
from rhymed_store.sessions import StoredSession, get_session
from rhymed_workers.engines.base import sampling_for
from rhymed_workers.sessions.endpoint import Endpoint
from rhymed_workers.sessions.finish import complete_sample
from rhymed_workers.sessions.session import Limits, Program, Session, command_of
from rhymed_workers.sessions.speech import load_speech

log = logging.getLogger(__name__)


class Programs:
    """`async with Programs(config, store) as programs:`; raises `EnvironmentFailed` for a command that is not there,
    `ConfigError` for a model without chat template, and `AddressRefused`. `act` may run for many samples at once."""

    def __init__(self, config: Config, store: StoreClient, folder: Path | None = None) -> None:
        """`folder`: of the run, to compare the program's files with their content at its start; None: it has none."""
        self._config, self._settings, self._store, self._folder = config, config.environment, store, folder
        self._sessions: dict[messages.SampleId, Session] = {}
        self._named: dict[str, Session] = {}
        self._closing = contextlib.AsyncExitStack()
        self.calls = self.errors = self.rebuilt = 0
        self.unreported: dict[messages.SampleId, list[messages.Call]] = {}  # calls; who reports the sample takes them

    async def __aenter__(self) -> Self:
        self._words = command_of(self._config)
        self._speech = await asyncio.to_thread(load_speech, self._config)
        self._closing.callback(self._speech.close)
        model = self._config.model.path
        try:
            self._endpoint = await self._closing.enter_async_context(
                Endpoint(self._settings.bind, self._settings.port, model, self._named)
            )
        except BaseException:
            await self._closing.aclose()
            raise
        log.info("programs are served at %s", self._endpoint.url("<sample>"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.close(id) for id in list(self._sessions)))
        await self._closing.aclose()

    @property
    def open(self) -> list[messages.SampleId]:
        """Samples whose programs are here."""
        return list(self._sessions)

    async def act(self, id: messages.SampleId) -> messages.SampleInfo | None:
        """Lets the sample go on. Returns its record if it is complete; None: the policy continues.

        Raises `EnvironmentFailed`; then the sample has no program any more. `EnvironmentUnusable`: a file of the
        command was edited since the run was started.
        """
        try:
            if not await self._act(id):
                return None
            info = await complete_sample(self._store, id)
        except BaseException:
            await self.close(id)
            raise
        await self.close(id)
        return info

    async def _act(self, id: messages.SampleId) -> bool:
        session = self._sessions.get(id)
        if session is None:
            stored = await retry(lambda: get_session(self._store, id, logprobs=True), "reading a sample in turns")
            if stored.session.done or stored.session.stored or not stored.session.acts:
                return stored.session.done or stored.session.stored
            if stored.turns and not self._settings.replay:
                raise EnvironmentFailed("its program was lost, and environment.replay is false")
            session = await self._begin(id, stored)
        try:
            return await session.act()
        finally:
            self._count(session)
            if session.made:
                self.unreported[id], session.made = session.made, []

    async def _begin(self, id: messages.SampleId, stored: StoredSession) -> Session:
        await asyncio.to_thread(compare, self._folder, self._config, "environment", EnvironmentUnusable)
        (row,) = await retry(lambda: self._store.get_prompts([id.prompt]), "reading a prompt")
        rollout, name = self._config.rollout, _name(id)
        sampling = sampling_for(rollout, self._config.eval, self._config.run.seed, id)
        settings = self._settings
        context = rollout.max_prompt_length + sampling.max_tokens
        limits = Limits(context, settings.max_turns, settings.timeout_s, settings.command)
        session = Session(id, self._store, self._speech, limits, options_of(f"prompt {id.prompt}", row))
        await asyncio.to_thread(session.load, stored)
        self._sessions[id] = self._named[name] = session
        self.rebuilt += bool(stored.turns)
        variables = {
            "OPENAI_BASE_URL": self._endpoint.url(name),
            "OPENAI_API_KEY": session.token,
            "RHYMED_SESSION": name,
        }
        content = json.dumps(row, ensure_ascii=False)
        session.program = await Program.start(self._config, self._words, content, self._endpoint.host, variables)
        return session

    async def close(self, id: messages.SampleId) -> None:
        """Ends its program, if it is here."""
        session = self._sessions.pop(id, None)
        if session is not None:
            del self._named[_name(id)]
            self._count(session)
            self.errors += sum(call.refused for call in session.calls)
            await session.close()

    def _count(self, session: Session) -> None:
        """Calls that arrived since the last time, also while the policy wrote."""
        self.calls += len(session.calls) - session.counted
        session.counted = len(session.calls)


def _name(id: messages.SampleId) -> str:
    """In URLs."""
    return f"{id.step}-{id.prompt}-{id.index}"
