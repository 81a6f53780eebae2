"""One client of several stores: splits requests by prompt, asks all stores at once, and restores the order.

Invariant: it has every call of `StoreClient`, with the same meaning. A write that fails in one store may be done in
others, so it is repeated as a whole, as any write whose answer was lost: all of them are idempotent. What belongs to
no prompt, which is what a step drew from the plan, is in the first store, and there before the marks of that step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from numpy.typing import ArrayLike, NDArray

from rhymed import messages
from rhymed.inputs.rows import Row, prompt_id
from rhymed.run.layout import RunLayout, store_name
from rhymed.wire.keys import OPEN, Keyring
from rhymed_store.client import DEADLINE_S, NewSample, StoreClient, StoredSample, Tokens
from rhymed_store.shards import merge
from rhymed_store.shards.split import positions_by_shard, shard_of

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def connect(layout: RunLayout, name: str, keys: Keyring = OPEN) -> StoreClient:
    """A client of the run's store, or of all its stores. `name` must be unique among the clients."""
    with contextlib.ExitStack() as opened:
        clients = []
        for one in layout.stores:
            clients.append(StoreClient(one.store, name, keys, store_name(one.shard)))
            opened.callback(clients[-1].close)
        opened.pop_all()
    return clients[0] if len(clients) == 1 else ShardedClient(clients)


class ShardedClient(StoreClient):
    def __init__(self, clients: Sequence[StoreClient]) -> None:
        self._clients = tuple(clients)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def of(self, prompt: str) -> StoreClient:
        return self._clients[shard_of(prompt, len(self._clients))]

    async def open_run(self, run: str, fingerprint: str, id: str = "", *, deadline_s: float = DEADLINE_S) -> None:
        """Also raises `RunMismatch` where a folder has another's place. `fingerprint`: a JSON object."""
        settings, shards = json.loads(fingerprint), len(self._clients)
        claims = [
            json.dumps({**settings, "store.shard": f"{number} of {shards}"}, sort_keys=True)
            for number in range(shards)
        ]
        await self._all(lambda number, store: store.open_run(run, claims[number], id, deadline_s=deadline_s))

    async def put_prompts(self, rows: Sequence[Row], *, deadline_s: float = DEADLINE_S) -> list[str]:
        ids = await asyncio.to_thread(lambda: [prompt_id(row) for row in rows])
        await self._split(rows, ids, lambda store, part: store.put_prompts(part, deadline_s=deadline_s))
        return ids

    async def get_prompts(self, prompts: Sequence[str], *, deadline_s: float = DEADLINE_S) -> list[Row]:
        return merge.restored(
            await self._split(prompts, prompts, lambda store, part: store.get_prompts(part, deadline_s=deadline_s))
        )

    async def put_samples(
        self, samples: Sequence[NewSample], *, deadline_s: float = DEADLINE_S
    ) -> list[messages.SampleInfo]:
        answers = await self._split(
            samples,
            [sample.info.id.prompt for sample in samples],
            lambda store, part: store.put_samples(part, deadline_s=deadline_s),
        )
        kept = {info.id: info for _, infos in answers for info in infos}
        return [kept[sample.info.id] for sample in samples if sample.info.id in kept]

    async def put_partials(
        self, parts: Mapping[messages.SampleId, tuple[int, ArrayLike]], *, deadline_s: float = DEADLINE_S
    ) -> list[messages.SampleId]:
        answers = await self._of_samples(
            list(parts), lambda store, ids: store.put_partials({id: parts[id] for id in ids}, deadline_s=deadline_s)
        )
        missing = {id for _, ids in answers for id in ids}
        return [id for id in parts if id in missing]

    async def get_partials(
        self, ids: Sequence[messages.SampleId], *, deadline_s: float = DEADLINE_S
    ) -> dict[messages.SampleId, Tokens]:
        answers = await self._of_samples(ids, lambda store, part: store.get_partials(part, deadline_s=deadline_s))
        return merge.in_order(ids, [found for _, found in answers])

    async def get_samples(
        self,
        ids: Sequence[messages.SampleId],
        *,
        logprobs: bool = False,
        prompt_tokens: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> list[StoredSample]:
        def ask(store: StoreClient, part: list[messages.SampleId]) -> Awaitable[list[StoredSample]]:
            return store.get_samples(part, logprobs=logprobs, prompt_tokens=prompt_tokens, deadline_s=deadline_s)

        return merge.restored(await self._of_samples(ids, ask))

    async def history(
        self, prompt: str, before_step: int, limit: int = 16, *, deadline_s: float = DEADLINE_S
    ) -> list[StoredSample]:
        return await self.of(prompt).history(prompt, before_step, limit, deadline_s=deadline_s)

    async def lengths(
        self, prompts: Sequence[str], before_step: int, *, turns: bool = False, deadline_s: float = DEADLINE_S
    ) -> dict[str, messages.LengthRow]:
        def ask(store: StoreClient, part: list[str]) -> Awaitable[dict[str, messages.LengthRow]]:
            return store.lengths(part, before_step, turns=turns, deadline_s=deadline_s)

        answers = await self._split(prompts, prompts, ask)
        return merge.in_order(prompts, [found for _, found in answers])

    async def put_scores(
        self,
        scores: Sequence[messages.Score],
        token_weights: Mapping[messages.SampleId, bytes] = {},
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        def ask(store: StoreClient, part: list[messages.Score]) -> Awaitable[None]:
            weights = {score.id: token_weights[score.id] for score in part if score.id in token_weights}
            return store.put_scores(part, weights, deadline_s=deadline_s)

        await self._split(scores, [score.id.prompt for score in scores], ask)

    async def put_token_stats(
        self,
        version: int,
        values: Mapping[messages.SampleId, NDArray[Any]],
        *,
        begins: bool,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """All stores hear that a step `begins`, also those without a sample of it."""
        places = positions_by_shard([id.prompt for id in values], len(self._clients))
        ids = list(values)

        async def ask(number: int, store: StoreClient) -> None:
            own = {ids[place]: values[ids[place]] for place in places.get(number, ())}
            if own or begins:
                await store.put_token_stats(version, own, begins=begins, deadline_s=deadline_s)

        await self._all(ask)

    async def mark(
        self,
        ids: Sequence[messages.SampleId],
        state: Literal["trained", "dropped"],
        reason: str = "",
        drawn: messages.Drawn | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """A crash in between leaves marks missing, which `Recovery` settles, and never marks without their draws."""
        if drawn:
            await self._clients[0].mark([], state, reason, drawn, deadline_s=deadline_s)
        await self._of_samples(ids, lambda store, part: store.mark(part, state, reason, deadline_s=deadline_s))

    async def forget_logprobs(self, below_step: int, *, deadline_s: float = DEADLINE_S) -> None:
        await self._all(lambda _, store: store.forget_logprobs(below_step, deadline_s=deadline_s))

    async def read_journal(
        self, from_step: int, recent: int = 0, *, deadline_s: float = DEADLINE_S
    ) -> messages.Journal:
        parts = await self._all(lambda _, store: store.read_journal(from_step, recent, deadline_s=deadline_s))
        return await asyncio.to_thread(merge.journals, parts)

    async def stats(self, *, deadline_s: float = DEADLINE_S) -> messages.StoreStats:
        return merge.stats(await self._all(lambda _, store: store.stats(deadline_s=deadline_s)))

    async def _of_samples(
        self,
        ids: Sequence[messages.SampleId],
        ask: Callable[[StoreClient, list[messages.SampleId]], Awaitable[Answer]],
    ) -> list[tuple[list[int], Answer]]:
        return await self._split(ids, [id.prompt for id in ids], ask)

    async def _split(
        self,
        items: Sequence[Item],
        prompts: Sequence[str],
        ask: Callable[[StoreClient, list[Item]], Awaitable[Answer]],
    ) -> list[tuple[list[int], Answer]]:
        """The answers of the stores that have any of the items, each with the positions of its items."""
        places = positions_by_shard(prompts, len(self._clients))
        if len(places) == 1:  # as a worker's samples usually are, of one prompt: without tasks
            ((number, own),) = places.items()
            return [(own, await ask(self._clients[number], list(items)))]
        numbers = sorted(places)
        calls = (ask(self._clients[number], [items[place] for place in places[number]]) for number in numbers)
        return [(places[number], answer) for number, answer in zip(numbers, await _at_once(calls), strict=True)]

    async def _all(self, ask: Callable[[int, StoreClient], Awaitable[Answer]]) -> list[Answer]:
        return await _at_once(ask(number, store) for number, store in enumerate(self._clients))


async def _at_once(calls: Iterable[Awaitable[Answer]]) -> list[Answer]:
    """Waits for all of them, so no write goes on unseen. Raises the first store's error."""
    answers: list[Answer] = []
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers
