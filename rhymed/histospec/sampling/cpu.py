"""Keyed sampling on a CPU: draws tokens with the noise of `noise` and compares them with drafts.

It is fast because g <= -log(eps), and a float's exponent and mantissa bound that logarithm to within 0.06 without
computing it. Vector instructions hash and bound a block of tokens; logarithms are computed only of tokens whose bound
exceeds the best score so far (about ten per row). Rows after the first wrong draft are not read.

Every row is computed separately and in one order, so neither threads nor the rest of the batch change a bit of it.

`ThreadTeam` runs such short kernels on several threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numba
import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.jit import Function, native

BLOCK = 256  # tokens
LN2 = math.log(2)
EXPONENT = 1 / 2**23  # unit of a float32's exponent in its bits
STRIDE = 0x9E3779B1  # of a row's first word, per token
LOWEST = -87.0  # exp of it is about the smallest normal float32
LEAST_SHARED = 2**18  # logits; fewer are finished before another thread wakes up


def _native_fast(*flags: str) -> Callable[[Function], Function]:
    """As `native`, but sums may be reordered for vector instructions, or fused with products."""

    def compile(function: Function) -> Function:
        options = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": set(flags)}
        return cast(Function, numba.njit(function, **options))

    return compile


class Rows(NamedTuple):
    """The logits to sample from: logits_NV holds the rows of request 0, then of request 1, …; B: requests.

    Request r has the rows first_B[r] to first_B[r + 1]: one for each of its drafts, and one more.
    """

    logits_NV: NDArray[np.float32]
    first_B: NDArray[np.int64]  # B + 1 entries
    drafts: NDArray[np.int64]  # of request 0, then of request 1, …
    key_B: NDArray[np.uint64]
    position_B: NDArray[np.int64]  # of the token that the request's first row gives
    scale_B: NDArray[np.float32]  # 1 / temperature; 0: greedy

    def parts(self, most: int) -> list[slice]:
        """Consecutive requests that have at most `most` rows together, or one request."""
        cuts = [0]
        for request in range(1, len(self.key_B)):
            if self.first_B[request + 1] - self.first_B[cuts[-1]] > most:
                cuts.append(request)
        return [slice(start, stop) for start, stop in zip(cuts, [*cuts[1:], len(self.key_B)], strict=True)]

    def cut(self, part: slice) -> Rows:
        """These requests, without logits and drafts."""
        first_B = self.first_B[part.start : part.stop + 1]
        key_B, position_B, scale_B = self.key_B[part], self.position_B[part], self.scale_B[part]
        return Rows(NO_LOGITS, first_B - first_B[0], NO_DRAFTS, key_B, position_B, scale_B)


NO_LOGITS = np.empty((0, 0), np.float32)  # of rows whose logits stay where the model left them
NO_DRAFTS = np.empty(0, np.int64)


@native
def _mix(w: np.uint64) -> np.uint64:
    w = (w ^ (w >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    w = (w ^ (w >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return w ^ (w >> np.uint64(31))


@native
def _hash(base: np.uint32, high: np.uint32, token: int) -> np.uint32:
    h = np.uint32(base + np.uint32(np.uint32(token) * np.uint32(STRIDE)))
    h = np.uint32((h ^ np.uint32(h >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(15))) + high)
    h = np.uint32(h * np.uint32(0x735A2D97))
    return np.uint32(h ^ np.uint32(h >> np.uint32(15)))


@native
def row_word(key: np.uint64, position: int) -> np.uint64:
    """The 64 bits that a row's noise is computed from."""
    return _mix(_mix(key + np.uint64(0x9E3779B97F4A7C15)) + np.uint64(position) * np.uint64(0xD1342543DE82EF95))


@native
def row_words(rows: Rows) -> NDArray[np.uint64]:
    """`row_word` of all rows. Shape: [N]."""
    words = np.empty(rows.first_B[-1], np.uint64)
    for r in range(len(rows.key_B)):
        for row in range(rows.first_B[r], rows.first_B[r + 1]):
            words[row] = row_word(rows.key_B[r], rows.position_B[r] + row - rows.first_B[r])
    return words


@native
def gumbel(row: np.uint64, token: int) -> float:
    """The noise of one token of a row."""
    h = _hash(np.uint32(row & np.uint64(0xFFFFFFFF)), np.uint32(row >> np.uint64(32)), token)
    return -math.log(-math.log1p(-(np.float64(h) + 0.5) / 2.0**32))


@native
def _bound(h: np.uint32) -> np.float32:
    """At least -log((h + 0.5) / 2**32): log2(1 + m) >= m, and 2**-20 covers rounding in float32."""
    bits = np.float32(np.float32(h) + np.float32(0.5)).view(np.int32)
    return np.float32((159 + 2**-20) * LN2) - np.float32(bits) * np.float32(EXPONENT * LN2)


@native
def _order(x: np.float32) -> np.int32:
    """An integer with the order of the floats. Its maximum is one vector instruction, with NaNs too."""
    bits = np.float32(x).view(np.int32)
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@native
def _draw(logits_V: NDArray[np.float32], key: np.uint64, position: int, scale: np.float32) -> int:
    row = row_word(key, position)
    low, high = np.uint32(row & np.uint64(0xFFFFFFFF)), np.uint32(row >> np.uint64(32))
    best, token = -np.inf, 0
    count = len(logits_V)
    for start in range(0, count, BLOCK):
        block = logits_V[start : start + BLOCK]
        base = np.uint32(low + np.uint32(np.uint32(start) * np.uint32(STRIDE)))
        top = np.int32(-(2**31))
        for v in range(len(block)):
            top = max(top, _order(block[v] * scale + _bound(_hash(base, high, v))))
        slack = 1e-5 * (1.0 + abs(best))
        if np.float32(best - slack) >= np.float32(_float(top)):
            continue
        for v in range(len(block)):
            z = block[v] * scale
            h = _hash(base, high, v)
            if z + _bound(h) > best - slack:
                score = np.float64(z) - math.log(-math.log1p(-(np.float64(h) + 0.5) / 2.0**32))
                if score > best:
                    best, token = score, start + v
    return token


@native
def _float(order: np.int32) -> np.float32:
    bits = np.int32(order ^ np.int32(np.int32(order >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return np.int32(bits).view(np.float32)


@native
def _largest(logits_V: NDArray[np.float32]) -> int:
    """The lowest id among equals; 0 if no logit is a number above -inf."""
    best, token = np.float32(-np.inf), 0
    for start in range(0, len(logits_V), BLOCK):
        block = logits_V[start : start + BLOCK]
        top = np.int32(-(2**31))
        for v in range(len(block)):
            top = max(top, _order(block[v]))
        if _float(top) <= best:
            continue
        for v in range(len(block)):
            if block[v] > best:
                best, token = block[v], start + v
    return token


@_native_fast("reassoc", "contract")
def _exp(x: np.float32) -> np.float32:
    """To 2 ulp for x <= 0, in operations that vectorize: 2**n times a polynomial (Cephes expf)."""
    x = x if x > np.float32(LOWEST) else np.float32(LOWEST)
    n = np.int32(x * np.float32(1.4426950408889634) - np.float32(0.5))
    r = x - np.float32(n) * np.float32(0.693359375)
    r = r - np.float32(n) * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return np.float32(p * np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32))


@_native_fast("reassoc")  # not "contract": fused, x * scale - peak would expose the rounding error of the peak
def _exponentials(block: NDArray[np.float32], scale: np.float32, peak: np.float32) -> np.float32:
    total = np.float32(0.0)
    for v in range(len(block)):
        total += _exp(block[v] * scale - peak)
    return total


@native
def _logprob(logits_V: NDArray[np.float32], scale: np.float32, token: int) -> float:
    """log softmax(logits * scale)[token]; float32 inside a block, float64 over blocks."""
    top = np.int32(-(2**31))
    for v in range(len(logits_V)):
        top = max(top, _order(logits_V[v]))
    peak = np.float32(_float(top) * scale)
    total = 0.0
    for start in range(0, len(logits_V), 1024):
        total += np.float64(_exponentials(logits_V[start : start + 1024], scale, peak))
    return np.float64(logits_V[token] * scale) - np.float64(peak) - math.log(total)


@native
def _verify(rows: Rows, share: int, shares: int, want_logprobs: bool, tokens_BT: Any, logprobs_BT: Any) -> None:
    """Samples every `shares`-th request: its rows in order, up to the first that differs from its draft."""
    for r in range(share, len(rows.key_B), shares):
        first, scale = rows.first_B[r], rows.scale_B[r]
        count = rows.first_B[r + 1] - first
        drafts = rows.drafts[first - r :]
        for j in range(count):
            logits_V = rows.logits_NV[first + j]
            if scale == 0:
                token = _largest(logits_V)
            else:
                token = _draw(logits_V, rows.key_B[r], rows.position_B[r] + j, scale)
            tokens_BT[r, j] = token
            if want_logprobs:
                logprobs_BT[r, j] = _logprob(logits_V, scale if scale != 0 else np.float32(1), token)
            if j + 1 < count and drafts[j] != token:
                break


def verify(
    rows: Rows, want_logprobs: bool, threads: ThreadTeam | None = None, width: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Tokens and log-probs of every request, up to and including the first token that differs from its draft.

    Shape: both [B, most rows of a request, at least `width`]; -1 and 0 after that. Without `want_logprobs` all
    log-probs are 0.
    """
    width = max(width, int(np.diff(rows.first_B).max(initial=1)))
    tokens_BT = np.full((len(rows.key_B), width), -1, np.int32)
    logprobs_BT = np.zeros((len(rows.key_B), width), np.float32)
    shared = threads is not None and threads.size > 1 and rows.logits_NV.size >= LEAST_SHARED
    shares = min(4 * threads.size, len(rows.key_B)) if threads and shared else 1

    def work(share: int) -> None:
        _verify(rows, share, shares, want_logprobs, tokens_BT, logprobs_BT)

    if threads and shares > 1:
        threads.run(work, shares)
    else:
        work(0)
    return tokens_BT, logprobs_BT


# A team of threads for short kernels that run without the interpreter's lock.
#
# numba's own threads are not used: two threads cannot use them at once, and the OpenMP kind does not survive a fork.


class ThreadTeam:
    """`size` threads, the calling one included."""

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self._helpers = ThreadPoolExecutor(max(1, self.size - 1), "histospec", _use_all_cores)

    def run(self, work: Callable[[int], None], shares: int) -> None:
        """Calls `work(share)` for every share below `shares`. Raises an error of any of them. Threads take one share
        at a time, so a thread that is not scheduled delays only one."""
        left = iter(range(shares))  # gives each number once, to any thread

        def help() -> None:
            for share in left:
                work(share)

        helpers = [self._helpers.submit(help) for _ in range(1, min(self.size, shares))]
        help()
        for helper in helpers:
            helper.result()

    def close(self) -> None:
        self._helpers.shutdown()


def _use_all_cores() -> None:
    """A thread inherits its creator's cores, and vLLM binds the sampling thread to a single one."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set().union(*map(_cores, Path("/proc/self/task").iterdir())))


def _cores(task: Path) -> set[int]:
    try:
        return os.sched_getaffinity(int(task.name))
    except ProcessLookupError:
        return set()
