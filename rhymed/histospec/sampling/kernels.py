"""Keyed sampling as two Triton kernels: `scan` reads every logit once, `verify` reduces and compares with the drafts.

`scan`: one program takes one block of a row's vocabulary. It leaves five numbers: the best score (logit plus noise,
in float32), its token, the second best score, the largest logit, and the sum of the exponentials.
`verify`: one program takes one request. Row by row it reduces the blocks, decides near ties in float64 (`float32`
has when, and why that is enough), and stops after the first token that differs from its draft.

Programs may take several rows or requests at once (ROWS): 1 on a device; many in Triton's interpreter, where a
program costs milliseconds. Importing this module needs Triton. Arguments of kernels have no types: Triton would read
them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rhymed.histospec.sampling import float32

LN2 = tl.constexpr(float32.LN2)
LOG_0, LOG_1, LOG_2, LOG_3, LOG_4, LOG_5 = map(tl.constexpr, float32.LOG)
RATIO_0, RATIO_1, RATIO_2, RATIO_3 = map(tl.constexpr, float32.RATIO)
QUARTER = tl.constexpr(float32.QUARTER)
ABSOLUTE = tl.constexpr(float32.ABSOLUTE)
RELATIVE = tl.constexpr(float32.RELATIVE)

COLUMNS = tl.constexpr(3)  # of a row's description, 32 bits each: low and high word of its noise, scale
PLANES = tl.constexpr(5)  # numbers that `scan` leaves of each block, 32 bits each

# A new value of these must not compile a kernel again: they change from step to step.
VARYING = ["count", "requests", "width"]

# Nor must a new alignment of these: they begin anywhere in a step's tensors, and none of them is read in blocks
# (except `logits` at a near tie).
ANYWHERE = ["logits", "first", "drafts", "tokens", "logprobs"]
DESCRIBING = ["slots", "positions", "keys", "temperatures", "about"]

MIX_1, MIX_2 = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
GOLDEN, STEP = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xD1342543DE82EF95)


@triton.jit
def _hash(low, high, token):
    """h of `noise`, in words of 32 bits that wrap around."""
    h = low + token.to(tl.uint32) * 0x9E3779B1
    h = (h ^ (h >> 16)) * 0x21F0AAAD
    h = (h ^ (h >> 15)) + high
    h = h * 0x735A2D97
    return h ^ (h >> 15)


@triton.jit
def _mix(w):
    """`mix` of `noise`, in words of 64 bits that wrap around."""
    w = (w ^ (w >> 30)) * MIX_1
    w = (w ^ (w >> 27)) * MIX_2
    return w ^ (w >> 31)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=DESCRIBING)
def describe(slots, positions, keys, temperatures, about, count, ROWS: tl.constexpr):
    """slots [count]; positions [count] of each row's input token; keys (int64) and temperatures by slot; about
    [count, COLUMNS]: what `scan` needs of a row whose logits are divided by its temperature."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < count
    slot = tl.load(slots + row, mask=there, other=0).to(tl.int64)
    position = tl.load(positions + row, mask=there, other=0).to(tl.int64) + 1
    key = tl.load(keys + slot, mask=there, other=0).to(tl.uint64, bitcast=True)
    word = _mix(_mix(key + GOLDEN) + position.to(tl.uint64, bitcast=True) * STEP)
    greedy = tl.load(temperatures + slot, mask=there, other=0.0) == 0.0
    scale = tl.where(greedy, 0.0, 1.0).to(tl.float32).to(tl.int32, bitcast=True)
    place = about + row * COLUMNS
    tl.store(place, (word & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 1, (word >> 32).to(tl.uint32).to(tl.int32, bitcast=True), mask=there)
    tl.store(place + 2, scale, mask=there)


@triton.jit
def _minus_log(f, exponent: tl.constexpr):
    """-log(f / 2**(exponent - 127)) of positive normal float32 numbers."""
    bits = f.to(tl.int32, bitcast=True)
    n = (exponent - (bits >> 23)).to(tl.float32)
    m = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    p = tl.fma(m, LOG_5, LOG_4)
    p = tl.fma(m, p, LOG_3)
    p = tl.fma(m, p, LOG_2)
    p = tl.fma(m, p, LOG_1)
    p = tl.fma(m, p, LOG_0)
    return tl.fma(n, LN2, -p)


@triton.jit
def _noise(h):
    """The noise in float32, to `float32.NOISE_ERROR`."""
    small = h < QUARTER
    f = tl.where(small, h, h ^ 0xFFFFFFFF).to(tl.float32) + 0.5
    y = _minus_log(f, 159)
    eps = f * 2.3283064365386963e-10  # 2**-32
    ratio = tl.fma(eps, RATIO_3, RATIO_2)
    ratio = tl.fma(eps, ratio, RATIO_1)
    ratio = tl.fma(eps, ratio, RATIO_0)
    return tl.where(small, y - ratio, _minus_log(y, 127))


@triton.jit
def _exact_noise(h):
    """In float64. 1 - eps is exact there, so its logarithm loses nothing."""
    eps = (h.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return -tl.log(-tl.log(1.0 - eps))


@triton.jit
def _window(top):
    """How far below the best float32 score the winner may be."""
    return 2 * (ABSOLUTE + RELATIVE * tl.abs(top))


@triton.jit(do_not_specialize=VARYING)
def scan(
    logits,
    stride,
    rows,
    found,
    count,
    vocabulary,
    blocks,
    LOGPROBS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """logits [count, vocabulary] of any float type; rows [count, COLUMNS]; found [PLANES, count, blocks]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(1)
    there = row < count
    low = tl.load(rows + row * COLUMNS, mask=there, other=0).to(tl.uint32, bitcast=True)
    high = tl.load(rows + row * COLUMNS + 1, mask=there, other=0).to(tl.uint32, bitcast=True)
    scale = tl.load(rows + row * COLUMNS + 2, mask=there, other=0).to(tl.float32, bitcast=True)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = there[:, None] & (token < vocabulary)[None, :]
    z = tl.load(logits + row[:, None] * stride + token[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    greedy = (scale == 0.0)[:, None]
    x = tl.where(greedy, z, z * scale[:, None])
    score = tl.where(greedy, x, x + _noise(_hash(low[:, None], high[:, None], token[None, :])))
    score = tl.where(inside & (score == score), score, float("-inf"))  # what is no number never wins
    best, at = tl.max(score, axis=1, return_indices=True)
    second = tl.max(tl.where(tl.arange(0, BLOCK)[None, :] == at[:, None], float("-inf"), score), axis=1)
    place = found + row * blocks + block
    plane = count.to(tl.int64) * blocks
    tl.store(place, best, mask=there)
    tl.store(place + plane, second, mask=there)
    tl.store(place + 2 * plane, (block * BLOCK + at).to(tl.int32).to(tl.float32, bitcast=True), mask=there)
    if LOGPROBS:
        peak = tl.max(x, axis=1)
        base = tl.where(peak == float("-inf"), 0.0, peak)  # a block may be masked as a whole
        total = tl.sum(tl.where(inside, tl.exp(x - base[:, None]), 0.0), axis=1)
        tl.store(place + 3 * plane, peak, mask=there)
        tl.store(place + 4 * plane, total, mask=there)


@triton.jit
def _near_tie(
    logits,
    stride,
    rows,
    row,
    vocabulary,
    blocks,
    near,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The token with the largest float64 score in the blocks that `near` [ROWS, BLOCKS] marks; the lowest among
    equals. Rows without a mark are not read."""
    low = tl.load(rows + row * COLUMNS).to(tl.uint32, bitcast=True)[:, None]
    high = tl.load(rows + row * COLUMNS + 1).to(tl.uint32, bitcast=True)[:, None]
    scale = tl.load(rows + row * COLUMNS + 2).to(tl.float32, bitcast=True)[:, None]
    best = (row * 0).to(tl.float64) + float("-inf")
    winner = (row * 0).to(tl.int32)
    for block in range(blocks):
        wanted = tl.max(tl.where(tl.arange(0, BLOCKS)[None, :] == block, near.to(tl.int32), 0), axis=1) > 0
        if tl.max(wanted.to(tl.int32), axis=0) > 0:
            token = block * BLOCK + tl.arange(0, BLOCK)[None, :]
            inside = wanted[:, None] & (token < vocabulary)
            z = tl.load(logits + row[:, None] * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
            x = (z * scale).to(tl.float64)
            score = x + _exact_noise(_hash(low, high, token))
            score = tl.where(inside & (score == score), score, float("-inf"))
            top, at = tl.max(score, axis=1, return_indices=True)
            better = top > best
            best = tl.where(better, top, best)
            winner = tl.where(better, (block * BLOCK + at).to(tl.int32), winner)
    return winner


@triton.jit
def _reduce(
    logits,
    stride,
    rows,
    found,
    plane,
    row,
    on,
    vocabulary,
    blocks,
    LOGPROBS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """(token, log-prob) of the rows `row` [ROWS]; of those with `on` only."""
    block = tl.arange(0, BLOCKS)[None, :]
    valid = on[:, None] & (block < blocks)
    place = found + row[:, None] * blocks + block
    best = tl.load(place, mask=valid, other=float("-inf"))
    second = tl.load(place + plane, mask=valid, other=float("-inf"))
    tokens = tl.load(place + 2 * plane, mask=valid, other=0.0).to(tl.int32, bitcast=True)
    scale = tl.load(rows + row * COLUMNS + 2).to(tl.float32, bitcast=True)
    top, at = tl.max(best, axis=1, return_indices=True)
    token = tl.sum(tl.where(block == at[:, None], tokens, 0), axis=1)
    floor = (top - _window(top))[:, None]  # not a number if the best score is infinite: hence the second comparison
    near = valid & ((best >= floor) | (best == top[:, None]))
    rivals = near.to(tl.int32) + (valid & ((second >= floor) | (second == top[:, None]))).to(tl.int32)
    unclear = on & (scale != 0.0) & (top > float("-inf")) & (tl.sum(rivals, axis=1) > 1)
    if tl.max(unclear.to(tl.int32), axis=0) > 0:
        exact = _near_tie(logits, stride, rows, row, vocabulary, blocks, near & unclear[:, None], BLOCK, BLOCKS)
        token = tl.where(unclear, exact, token)
    logprob = tl.full(token.shape, 0.0, tl.float32)
    if LOGPROBS:
        peaks = tl.load(place + 3 * plane, mask=valid, other=float("-inf"))
        totals = tl.load(place + 4 * plane, mask=valid, other=0.0)
        peak = tl.max(peaks, axis=1)
        total = tl.sum(totals * tl.exp(peaks - peak[:, None]), axis=1)
        z = tl.load(logits + row * stride + token, mask=on, other=0.0).to(tl.float32)
        logprob = tl.where(scale == 0.0, z, z * scale) - peak - tl.log(total)
    return token, logprob


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=ANYWHERE)
def verify(
    logits,
    stride,
    rows,
    first,
    drafts,
    found,
    tokens,
    logprobs,
    count,
    requests,
    width,
    vocabulary,
    blocks,
    LOGPROBS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """first [requests + 1]: each request's first row; drafts [count - requests]; tokens, logprobs [requests, width]:
    -1 and 0 after the first token that differs from its draft. BLOCKS: `blocks` rounded up to a power of two."""
    request = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = request < requests
    start = tl.load(first + request, mask=there, other=0).to(tl.int64)
    end = tl.load(first + request + 1, mask=there, other=0).to(tl.int64)
    plane = count.to(tl.int64) * blocks
    alive = there
    for j in range(width):
        on = alive & (start + j < end)
        row = tl.where(on, start + j, 0)
        token = tl.full([ROWS], -1, tl.int32)
        logprob = tl.full([ROWS], 0.0, tl.float32)
        if tl.max(on.to(tl.int32), axis=0) > 0:
            drawn, value = _reduce(
                logits, stride, rows, found, plane, row, on, vocabulary, blocks, LOGPROBS, BLOCK, BLOCKS
            )
            token = tl.where(on, drawn, token)
            logprob = tl.where(on, value, logprob)
            drafted = on & (row + 1 < end)
            draft = tl.load(drafts + row - request, mask=drafted, other=-1).to(tl.int32)
            alive = drafted & (draft == drawn)
        tl.store(tokens + request * width + j, token, mask=there)
        tl.store(logprobs + request * width + j, logprob, mask=there)
