"""Replays recorded samples in turns with a drafter. What environments wrote is context, read with the next turn.

As in an engine, the pass that reads an answer makes the first token of the turn after it, so that token has no draft.
A draft ends where its turn ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay import LONGEST, Drafter
from benchmarks.traces import Response, Tokens


@dataclass
class Passes:
    forwards: int = 0  # counted per request
    verified: int = 0
    generated: int = 0

    @property
    def per_forward(self) -> float:
        return self.generated / max(1, self.forwards)

    @property
    def cost(self) -> float:
        """Verified tokens per generated token."""
        return self.verified / max(1, self.generated)


@dataclass
class Row:
    """One sample: `fresh` are tokens that the drafter has not seen."""

    tokens: Tokens
    turns: list[tuple[int, int]]  # where each begins and ends
    turn: int = 0
    done: int = 0
    told: int = 0
    first: bool = True  # the next pass reads what comes before the turn

    @property
    def end(self) -> int:
        return self.turns[self.turn][1]

    def advance(self, count: int) -> bool:
        """False: it is over."""
        self.done, self.first = self.done + count, False
        if self.done == self.end:
            self.turn, self.first = self.turn + 1, True
            if self.turn == len(self.turns):
                return False
            self.done = self.turns[self.turn][0]
        return True


def replay(
    drafter: Drafter,
    responses: Sequence[Response],
    masks: Sequence[NDArray[np.bool_]],
    floor: float = 0.0,
    batch: int = 64,
) -> dict[int, Passes]:
    """Runs all samples to their ends; what it cost, by the number of the turn. Drafted tokens with a survival below
    `floor` are not verified."""
    found: dict[int, Passes] = defaultdict(Passes)
    waiting = [number for number, mask in enumerate(masks) if mask.any()][::-1]
    running: dict[int, Row] = {}
    while running or waiting:
        while waiting and len(running) < batch:
            number = waiting.pop()
            running[number] = Row(responses[number].tokens, turns_of(masks[number]))
            drafter.start(number)
        rows = np.array(list(running), np.int32)
        parts = [row.tokens[row.told : row.done] for row in running.values()]
        offsets = np.cumsum([0, *map(len, parts)]).astype(np.int32)
        tokens, drafted, survival = drafter.propose(rows, np.concatenate(parts).astype(np.int32), offsets)
        verified, accepted = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32)
        for place, (number, row) in enumerate(list(running.items())):
            row.told, left = row.done, row.end - row.done
            survives = survival[place, : drafted[place]] >= floor
            offered = 0 if row.first else int(survives.cumprod().sum())
            ahead = np.full(LONGEST, -2, np.int32)  # nothing is right past the end of the turn
            ahead[: min(left, LONGEST)] = row.tokens[row.done : row.end][:LONGEST]
            right = tokens[place, :offered] == ahead[:offered]
            verified[place], accepted[place] = offered, int(right.cumprod().sum())
            passes, taken = found[row.turn], min(int(accepted[place]) + 1, left)
            passes.forwards += 1
            passes.verified += offered
            passes.generated += taken
            if not row.advance(taken):
                del running[number]
        drafter.observe(verified, accepted)
    return dict(found)


def turns_of(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where the policy's runs begin and end."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False].astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


class Ngram:
    """vLLM's prompt lookup: the tokens after the first earlier place of the longest of the last `most` to `least`
    tokens."""

    def __init__(
        self, prompts: Sequence[Tokens], responses: Sequence[Response], most: int = 4, least: int = 2
    ) -> None:
        self.build_s = self.draft_s = 0.0
        self._text = [prompts[response.prompt] for response in responses]
        self._most, self._least = most, least

    def start(self, row: int) -> None:
        """Its prompt is its text so far."""

    def propose(self, rows: Tokens, fresh: Tokens, offsets: Tokens) -> tuple[Tokens, Tokens, NDArray[np.float32]]:
        tokens, lengths = np.full((len(rows), LONGEST), -1, np.int32), np.zeros(len(rows), np.int32)
        for place, row in enumerate(rows.tolist()):
            text = self._text[row] = np.concatenate([self._text[row], fresh[offsets[place] : offsets[place + 1]]])
            draft = self._lookup(text)
            tokens[place, : len(draft)], lengths[place] = draft, len(draft)
        return tokens, lengths, np.ones((len(rows), LONGEST), np.float32)

    def _lookup(self, text: Tokens, count: int = 8) -> Tokens:
        for size in range(self._most, self._least - 1, -1):
            if len(text) <= size:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
            places = np.flatnonzero((windows == text[-size:]).all(axis=1))
            if len(places):
                return text[places[0] + size : places[0] + size + count]
        return text[:0]

    def observe(self, verified: Tokens, accepted: Tokens) -> None:
        """It learns nothing."""

    def nbytes(self) -> int:
        return 0
