"""Which running request has which live sequence in which prompt's index.

Requests of one prompt share one index. A request that waits, preempted, keeps its sequence; one that has ended leaves
its text to its siblings. Invariant: an index with open sequences is never dropped, and `Row.tokens` tokens of the
request lie in its sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.carried import Carried
from rhymed.histospec.drafts.stats import Account
from rhymed.histospec.drafts.yields import Yields
from rhymed.histospec.index.builder import Library
from rhymed.histospec.index.cache import Shelf
from rhymed.histospec.index.index import Index, extend

REMEMBERED = 8192  # accounts
REMEMBERED_YIELDS = 2048  # a byte a forward each; they are asked for once


class Asked(NamedTuple):
    """What the engine knows of a request."""

    name: str  # by which its account is asked for
    prompt: str  # whose history it has
    step: int  # training step that it is for
    context: Sequence[int]  # prompt tokens
    made: Sequence[int]  # the engine's own list of response tokens, which grows
    carried: Any = ()  # response tokens that it made before, as somebody has told it


@dataclass(eq=False)
class Row:
    """A running request."""

    asked: Asked
    index: Index
    live: int  # its sequence in the index
    carried: Carried
    tokens: int = 0  # that the sequence has
    over: bool = False
    account: Account = field(default_factory=Account)
    yields: Yields = field(default_factory=Yields)

    def reopen(self, length: int) -> Sequence[int]:
        """A new sequence, for the engine and we are of two minds about the old one. Returns all it must have."""
        if self.tokens:
            self.index.close(self.live)
            self.live = self.index.open()
        return self.asked.made[:length]


@dataclass
class Prompt:
    """What the requests of one prompt have in common."""

    step: int
    rows: set[Row] = field(default_factory=set)
    ended: list[NDArray[np.int32]] = field(default_factory=list)  # finished while others ran: history lacks them


class Seats:
    def __init__(
        self,
        library: Library,
        describe: Callable[[str], Asked | None],
        take: Callable[[str, Any], Carried],
        budget_bytes: int,
        seen: Callable[[Asked], None] | None,
        ended: Callable[[Asked], None] | None,
    ) -> None:
        """See `drafter.Drafter`."""
        self._library, self._describe, self._take = library, describe, take
        self._seen, self._ended = seen, ended
        self._shelf = Shelf(budget_bytes)
        self._prompts: dict[str, Prompt] = {}
        self._rows: dict[str, Row] = {}  # by request, those included that wait
        self._order: list[str] = []
        self._seated: list[Row] = []
        self._accounts: OrderedDict[str, Account] = OrderedDict()  # by name
        self._yields: OrderedDict[str, Yields] = OrderedDict()  # likewise

    def seat(self, requests: list[str]) -> list[Row]:
        """Their rows, in this order; the list is ours. Histories that arrived are in place."""
        self._receive()
        if requests != self._order:
            here = set(requests)
            self._leave([one for one in self._rows if one not in here and self._describe(one) is None])
            self._seated = [self._rows.get(request) or self._join(request) for request in requests]
            self._order = requests.copy()
        return self._seated

    def end(self, row: Row) -> None:
        """It makes no more tokens, though the engine may know it for another step."""
        if not row.over:
            row.over = True
            if self._ended:
                self._ended(row.asked)

    def account(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def take_yields(self, name: str) -> bytes | None:
        """See `yields`. Not remembered any more."""
        found = self._yields.pop(name, None)
        return None if found is None else bytes(found)

    def close(self) -> None:
        self._leave(list(self._rows))
        self._order, self._seated = [], []

    def _receive(self) -> None:
        for prompt, index in self._library.arrived():
            shared = self._prompts.get(prompt)
            for tokens in shared.ended if shared else ():
                live = index.open()
                extend([index], np.array([live], np.int32), tokens, np.array([0, len(tokens)], np.int32))
                index.close(live)
            for row in shared.rows if shared else ():
                row.index.close(row.live)
                row.index, row.live, row.tokens = index, _open(index, row.carried), 0
            self._shelf.drop(prompt)
            self._shelf.put(prompt, index)  # without room only those who run now keep it

    def _join(self, request: str) -> Row:
        asked = self._describe(request)
        assert asked is not None, "the engine knows what it runs"
        shared = self._prompts.get(asked.prompt)
        if shared is None:
            shared = self._prompts[asked.prompt] = Prompt(asked.step)
            if self._seen:
                self._seen(asked)
        index = self._shelf.get(asked.prompt)
        if index is None:
            index = Index(np.asarray(asked.context, np.int32))
            self._shelf.put(asked.prompt, index)
        carried = self._take(asked.name, asked.carried)
        row = self._rows[request] = Row(asked, index, _open(index, carried), carried)
        shared.rows.add(row)
        self._accounts[asked.name] = row.account
        self._yields[asked.name] = row.yields
        self._yields.move_to_end(asked.name)  # it may be a sample's second request
        while len(self._accounts) > REMEMBERED:
            self._accounts.popitem(last=False)
        while len(self._yields) > REMEMBERED_YIELDS:
            self._yields.popitem(last=False)
        return row

    def _leave(self, requests: Sequence[str]) -> None:
        for request in requests:
            row = self._rows.pop(request)
            self.end(row)
            row.index.close(row.live)
            shared = self._prompts[row.asked.prompt]
            shared.rows.discard(row)
            if shared.rows:
                shared.ended.append(np.array(row.asked.made, np.int32))
            else:
                del self._prompts[row.asked.prompt]
                self._shelf.count(row.asked.prompt)


def _open(index: Index, carried: Carried) -> int:
    """A request's sequence, with the carried text before it as of the last epoch: a text often goes on alike behind
    a difference, and of responses that stand in front of it a sequence keeps the place from its start on."""
    if carried.tokens:
        index.add(np.array(carried.tokens, np.int32), age=1)
    return index.open()
