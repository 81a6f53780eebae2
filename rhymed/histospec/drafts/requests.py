"""The running requests and their sequences in their prompts' indexes.

Requests of one prompt share one index. A preempted request keeps its sequence; the text of one that has ended stays
in the index for its siblings, and a later turn of its sample goes on with it. Invariant: an index with open sequences
is never dropped, and a request's sequence holds `Request.tokens` of its tokens.

`Requests` owns them; `CarriedDrafts` are the tokens that a request brought with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.drafts.types import Drafts
from rhymed.histospec.drafts.yields import Account, Yields
from rhymed.histospec.index.builder import Builder
from rhymed.histospec.index.index import Index, IndexCache, extend
from rhymed.histospec.index.recent import Recent

log = logging.getLogger(__name__)

KEPT_ACCOUNTS = 8192
KEPT_YIELDS = 2048  # one byte per forward each; they are read once
KEPT_TURNS = 8192  # samples whose last turn may be continued


class RequestInfo(NamedTuple):
    name: str  # under which its account is kept
    prompt: str  # whose history it uses
    step: int  # training step
    context: Sequence[int]  # prompt tokens
    response: Sequence[int]  # the engine's own list of response tokens, which grows
    carried: Any = ()  # earlier response tokens, unchecked; they follow the prefix
    prefix: int = 0  # response tokens that the request began with, as a later turn of a sample does
    in_turns: bool = False  # another request may continue it


class Continued(Sequence[int]):
    """The response of a later turn: what came before, then the engine's own list, which grows."""

    def __init__(self, prefix: Sequence[int], written: Sequence[int]) -> None:
        self._prefix, self._written = prefix, written

    def __len__(self) -> int:
        return len(self._prefix) + len(self._written)

    def __iter__(self) -> Iterator[int]:
        """Without this each token would be an index, which costs a copy of all."""
        return chain(self._prefix, self._written)

    def __getitem__(self, place: Any) -> Any:
        return [*self][place]


@dataclass(eq=False)
class Request:
    info: RequestInfo
    index: Index
    row: int  # of its sequence in the index
    carried: Carried
    tokens: int = 0  # in the sequence
    ended: bool = False
    account: Account = field(default_factory=Account)
    yields: Yields = field(default_factory=Yields)

    def reopen(self, length: int) -> Sequence[int]:
        """Starts a new sequence because the old one differs from the engine's tokens. Returns all its tokens."""
        if self.tokens:
            self.index.close(self.row)
            self.row = self.index.open()
        return self.info.response[:length]


class Ended(NamedTuple):
    """A turn that has ended, and where it is."""

    place: ReferenceType[Index]  # which may have been dropped since
    row: int
    tokens: int
    digest: bytes  # of its tokens


@dataclass
class Prompt:
    step: int
    requests: set[Request] = field(default_factory=set)
    ended: list[tuple[str, NDArray[np.int32]]] = field(default_factory=list)
    """Names and tokens of ended siblings, which new history does not contain."""


class Requests:
    def __init__(
        self,
        builder: Builder,
        describe: Callable[[str], RequestInfo | None],
        take_carried: Callable[[str, Any], Carried],
        budget_bytes: int,
        on_prompt: Callable[[RequestInfo], None] | None,
        on_end: Callable[[RequestInfo], None] | None,
    ) -> None:
        """See `drafter.Drafter`."""
        self._builder, self._describe, self._take_carried = builder, describe, take_carried
        self._on_prompt, self._on_end = on_prompt, on_end
        self._indexes = IndexCache(budget_bytes)
        self.recent = Recent(builder.vocabulary)
        self._prompts: dict[str, Prompt] = {}
        self._requests: dict[str, Request] = {}  # by id, with the preempted ones
        self._batch_ids: list[str] = []
        self.batch: list[Request] = []  # of the last `update`
        self._accounts: OrderedDict[str, Account] = OrderedDict()  # by name
        self._yields: OrderedDict[str, Yields] = OrderedDict()  # by name
        self._turns: OrderedDict[str, Ended] = OrderedDict()  # by name

    def update(self, ids: list[str]) -> list[Request]:
        """The requests of the engine's batch, in its order; the list must not be changed. Installs built indexes."""
        self._install_indexes()
        if ids != self._batch_ids:
            running = set(ids)
            self._leave([id for id in self._requests if id not in running and self._describe(id) is None])
            self.batch = [self._requests.get(id) or self._join(id) for id in ids]
            self._batch_ids = ids.copy()
        return self.batch

    def end(self, request: Request) -> None:
        """It makes no more tokens, though the engine may keep it for another step."""
        if not request.ended:
            request.ended = True
            if self._on_end:
                self._on_end(request.info)

    def account(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def take_yields(self, name: str) -> bytes | None:
        yields = self._yields.pop(name, None)
        return None if yields is None else bytes(yields)

    def close(self) -> None:
        self._leave(list(self._requests))
        self._batch_ids, self.batch = [], []

    def _install_indexes(self) -> None:
        for name, index in self._builder.finished():
            prompt = self._prompts.get(name)
            for _, tokens in prompt.ended if prompt else ():
                row = index.open()
                _extend(index, row, tokens)
                index.close(row)
            for request in prompt.requests if prompt else ():
                request.index.close(request.row)
                request.index, request.row, request.tokens = index, _open(index, request.carried, request.info), 0
            self._indexes.drop(name)
            self._indexes.put(name, index)  # if it is refused, only the running requests use it

    def _join(self, id: str) -> Request:
        info = self._describe(id)
        assert info is not None, "the engine knows the requests that it runs"
        if (prompt := self._prompts.get(info.prompt)) is None:
            prompt = self._prompts[info.prompt] = Prompt(info.step)
            if self._on_prompt:
                self._on_prompt(info)
        if (index := self._indexes.get(info.prompt)) is None:
            index = Index(np.asarray(info.context, np.int32))
            self._indexes.put(info.prompt, index)
        carried = self._take_carried(info.name, info.carried)
        request = self._resume(info, prompt, index, carried)
        request = self._requests[id] = request or Request(info, index, _open(index, carried, info), carried)
        prompt.requests.add(request)
        self._accounts[info.name] = request.account
        self._yields[info.name] = request.yields
        self._yields.move_to_end(info.name)  # it may be a sample's second request
        while len(self._accounts) > KEPT_ACCOUNTS:
            self._accounts.popitem(last=False)
        while len(self._yields) > KEPT_YIELDS:
            self._yields.popitem(last=False)
        return request

    def _resume(self, info: RequestInfo, prompt: Prompt, index: Index, carried: Carried) -> Request | None:
        """A later turn, in the sequence of the turn before it: otherwise the index would have each turn's beginning
        again. None: it needs a sequence of its own."""
        last = self._turns.pop(info.name, None) if info.prefix and not carried.tokens else None
        if last is None or not _continues(info, index, last):
            return None
        own = info.name, last.tokens
        prompt.ended = [(name, tokens) for name, tokens in prompt.ended if (name, len(tokens)) != own]
        index.resume(last.row)
        _extend(index, last.row, np.array(info.response[last.tokens : info.prefix], np.int32))
        return Request(info, index, last.row, carried, info.prefix)

    def _leave(self, ids: Sequence[str]) -> None:
        for id in ids:
            request = self._requests.pop(id)
            self.end(request)
            request.index.close(request.row)
            self._keep(request)
            name = request.info.prompt
            prompt = self._prompts[name]
            prompt.requests.discard(request)
            if request.info.in_turns:
                self._remember_turn(request)
            if prompt.requests:
                prompt.ended.append((request.info.name, np.array(request.info.response, np.int32)))
            else:
                del self._prompts[name]
                self._indexes.measure(name)

    def _keep(self, request: Request) -> None:
        """For requests of other prompts: what it wrote, so of a later turn only that. A response with an id that is
        not in the vocabulary is left out."""
        written = np.array(request.info.response[request.info.prefix :], np.int32)
        with contextlib.suppress(ValueError):
            self.recent.add(written)

    def _remember_turn(self, request: Request) -> None:
        response = request.info.response
        if request.tokens == len(response):
            ended = Ended(ref(request.index), request.row, request.tokens, _digest(response))
            self._turns[request.info.name] = ended
        while len(self._turns) > KEPT_TURNS:
            self._turns.popitem(last=False)


def _extend(index: Index, row: int, tokens: NDArray[np.int32]) -> None:
    extend([index], np.array([row], np.int32), tokens, np.array([0, len(tokens)], np.int32))


def _continues(info: RequestInfo, index: Index, last: Ended) -> bool:
    """Whether the request begins with the tokens of this turn, and the index has them."""
    if last.place() is not index or last.tokens > info.prefix:
        return False
    return _digest(info.response[: last.tokens]) == last.digest


def _digest(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.array(tokens, np.int32).tobytes(), digest_size=16).digest()


def _open(index: Index, carried: Carried, info: RequestInfo) -> int:
    """A request's sequence. Carried text is indexed before it, as of the last epoch: texts usually realign after a
    difference, and a sequence tracks its position only in responses that were indexed before it."""
    if carried.tokens:
        index.add(np.array([*info.response[: info.prefix], *carried.tokens], np.int32), age=1)
    return index.open()


# Carried tokens: response tokens that a request made before, with older weights or in another engine.
#
# Position-keyed sampling uses the same noise again, so nearly all of these tokens are sampled again. They are a
# request's drafts while its response equals their beginning; after the first difference they serve as one more past
# response, see `requests`. Pure: knows neither the index nor the engine.

PRIOR = 0.98  # probability that a carried token is sampled again
PRIOR_TOKENS = 50.0  # observations that the prior counts as
MEMORY = 2000.0  # tokens after which an observation has lost its weight


class Carried:
    """Of one request. `kept`: how many of its tokens were sampled again before the first difference."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        """`tokens`: the response from its first token on; all are in the vocabulary."""
        self.tokens = list(tokens)
        self.kept = 0
        self._length = 0  # of the response

    def follow(self, fresh: Sequence[int], length: int) -> tuple[int, bool]:
        """The response has `length` tokens now and `fresh` are the last ones. If they are all, it is compared again.
        Returns how many more carried tokens were kept, and whether the first difference is among `fresh`."""
        start, before, whole = length - len(fresh), self.kept, self.kept == self._length
        if start <= before:
            self.kept = start + _common_prefix(self.tokens[start:length], fresh)
        self._length = length
        return max(0, self.kept - before), whole and self.kept < min(length, len(self.tokens))

    def ahead(self, most: int) -> list[int]:
        """The next carried tokens, at most `most`; none after a difference."""
        return self.tokens[self.kept : self.kept + most] if self.kept == self._length else []


class CarriedDrafts:
    """The carried tokens of all requests. `rate`: the probability that the next one is sampled again."""

    def __init__(self, vocabulary: int) -> None:
        """`vocabulary`: token ids from here on belong to another tokenizer."""
        self._vocabulary = vocabulary
        self._tried, self._same = PRIOR_TOKENS, PRIOR * PRIOR_TOKENS
        self._warned = False

    @property
    def rate(self) -> float:
        return self._same / self._tried

    def take(self, name: str, tokens: Any) -> Carried:
        """Checks a request's carried tokens: none if they are not token ids, with one warning for all requests. They
        end before the first id that is not in the vocabulary."""
        try:
            return Carried(_checked(tokens, self._vocabulary))
        except ValueError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "request %s: its carried tokens are ignored, as are all invalid ones from now on: %s", name, error
                )
        return Carried()

    def follow(self, carried: Carried, fresh: Sequence[int], length: int) -> None:
        """See `Carried.follow`; updates the rate."""
        same, differs = carried.follow(fresh, length)
        tried = same + differs
        if tried:
            fade = (1 - 1 / MEMORY) ** tried
            self._tried, self._same = fade * self._tried + tried, fade * self._same + same

    def put(self, drafts: Drafts, ahead: Sequence[list[int]]) -> None:
        """Replaces the drafts of requests with carried tokens `ahead`, at most as many as columns."""
        if not any(ahead):
            return
        survival = np.power(self.rate, np.arange(1, drafts.tokens.shape[1] + 1))
        for row, tokens in enumerate(ahead):
            if tokens:
                count = len(tokens)
                drafts.lengths[row] = count
                drafts.tokens[row, :count] = tokens
                drafts.survival[row, :count] = survival[:count]


def _common_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    for position, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return position
    return len(ours)


def _checked(tokens: Any, vocabulary: int) -> list[int]:
    """The ids before the first one that is not in [0, vocabulary). ValueError unless it is one row of integers."""
    if tokens is None:
        return []
    if isinstance(tokens, str | bytes | dict | set):
        raise ValueError(f"a list of token ids expected, not {type(tokens).__name__}")
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"a list of token ids expected: {error}") from None
    if array.shape == (0,):
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"a list of token ids expected, not an array of {array.dtype} and shape {array.shape}")
    outside = np.flatnonzero((array < 0) | (array >= vocabulary))
    return [int(token) for token in array[: outside[0] if len(outside) else None]]
