"""The memory of one prompt's index: one flat int32 array, and the compiled code that writes it.

Sequences (the prompt, past responses, running ones) own blocks of `BLOCK` slots, one token per slot. Blocks are
linked in both directions, so that several sequences can grow. Slot 0 of a sequence is its start, a mark that counts
as context. Every written slot is in two chains, newest first, of slots whose last `long` (`short`) tokens have the
same hash: a chain lists where this context occurred before. Hashes collide, so readers compare tokens.

    header | per slot: tokens, long chain, short chain | heads of both | per block: next, previous, owner | sequences

An open sequence tracks up to `TRACKS` positions in other sequences, those that correspond to its own last token. They
advance with it, token by token, even where tokens differ: texts usually realign after a difference.

Nothing is freed or moved: when the array is full, `Index` copies it into a larger one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.histospec.jit import grid, memory, native

Array = NDArray[np.int32]

BLOCK = 32
NOTHING = -1  # no slot, no block
UNWRITTEN = -2  # a slot without a token yet
START = -3  # of every response: the same context for all of them
PROMPT_START = -4

# The header's entries.
SLOTS, USED, HEADS, ROOM, SEQUENCES, LONG, SHORT, VOCABULARY, NEED, TOKENS = range(10)
HEADER = 16
# The fields of a sequence.
LAST, KIND, AGE, FORM, FIRST = range(5)
TRACK = 8  # from here on: pairs of a slot, or `NOTHING`, and the similarity of the texts that end there
TRACKS = 12
FIELDS = TRACK + 2 * TRACKS
LONGEST = 32  # tokens of context that are compared
FADE = 8  # tokens: time constant of the similarity
# Kinds of sequences; closed and open ones are siblings.
PROMPT, HISTORY, CLOSED, OPEN = range(4)
ONE = 1024  # similarities and forms are fixed-point

# Results of `extend`.
DONE, BAD_TOKEN, FULL, NOT_OPEN = range(4)


def size(slots: int, heads: int, room: int) -> int:
    """Entries of an arena's array; `slots` is a multiple of `BLOCK`, `heads` a power of two."""
    return HEADER + 3 * slots + 2 * heads + 3 * (slots // BLOCK) + FIELDS * room


def allocate(slots: int, room: int, orders: tuple[int, int], vocabulary: int) -> Array:
    """An empty arena: `slots` rounded up to whole blocks, space for `room` sequences, orders (long, short)."""
    slots = max(-(-slots // BLOCK), 1) * BLOCK
    heads = 1 << max(slots - 1, 1).bit_length() - 1  # between half a head and one head a slot
    arena = np.full(size(slots, heads, room), NOTHING, np.int32)
    arena[:HEADER] = 0
    arena[[SLOTS, HEADS, ROOM, LONG, SHORT, VOCABULARY]] = slots, heads, room, *orders, vocabulary
    arena[HEADER : HEADER + slots] = UNWRITTEN
    return arena


class Views(NamedTuple):
    """The arrays of an arena."""

    header: Array
    tokens: Array  # (slots,)
    long: Array  # (slots,): the slot before with the same context of the long order
    short: Array
    long_heads: Array  # (heads,): the newest slot of a bucket
    short_heads: Array
    after: Array  # (blocks,): the next block of the sequence
    before: Array
    owner: Array  # (blocks,): the sequence's row
    sequences: Array  # (room, FIELDS)


@native
def views(address: int) -> Views:
    header = memory(address, HEADER)
    slots, heads, blocks = int(header[SLOTS]), int(header[HEADS]), int(header[SLOTS]) // BLOCK
    a = address + 4 * HEADER
    tokens, long, short = memory(a, slots), memory(a + 4 * slots, slots), memory(a + 8 * slots, slots)
    a += 12 * slots
    long_heads, short_heads = memory(a, heads), memory(a + 4 * heads, heads)
    a += 8 * heads
    after, before, owner = memory(a, blocks), memory(a + 4 * blocks, blocks), memory(a + 8 * blocks, blocks)
    sequences = grid(a + 12 * blocks, int(header[ROOM]), FIELDS)
    return Views(header, tokens, long, short, long_heads, short_heads, after, before, owner, sequences)


@native
def following(slot: int, after: Array) -> int:
    """The slot after this one in its sequence, or `NOTHING`; it may be unwritten."""
    if (slot + 1) % BLOCK:
        return slot + 1
    block = int(after[slot // BLOCK])
    return block * BLOCK if block >= 0 else NOTHING


@native
def preceding(slot: int, before: Array) -> int:
    """The slot before this one, which is not a start."""
    return slot - 1 if slot % BLOCK else int(before[slot // BLOCK]) * BLOCK + BLOCK - 1


@native
def buckets(slot: int, tokens: Array, before: Array, long: int, short: int, heads: int) -> tuple[int, int]:
    """The hash buckets of the contexts that end at this slot: (long order, short order)."""
    code, at_short = np.uint64(0), np.uint64(0)
    for depth in range(long):
        token = tokens[slot]
        code = (code ^ np.uint64(token + 8)) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
        if depth < short:
            at_short = code
        if token <= START:
            break
        slot = preceding(slot, before)
    mask = np.uint64(heads - 1)
    return int((code >> np.uint64(20)) & mask), int((at_short >> np.uint64(20)) & mask)


@native
def _write(address: int, row: int, token: int) -> None:
    header, tokens, long, short, long_heads, short_heads, after, before, owner, sequences = views(address)
    last = int(sequences[row, LAST])
    slot = following(last, after) if last >= 0 else NOTHING
    if slot < 0:
        slot = int(header[USED])
        header[USED] += BLOCK
        block = slot // BLOCK
        owner[block] = row
        if last >= 0:
            after[last // BLOCK] = block
            before[block] = last // BLOCK
    tokens[slot] = token
    sequences[row, LAST] = slot
    at_long, at_short = buckets(slot, tokens, before, header[LONG], header[SHORT], header[HEADS])
    long[slot] = long_heads[at_long]
    long_heads[at_long] = slot
    short[slot] = short_heads[at_short]
    short_heads[at_short] = slot


@native
def begin(address: int, kind: int, age: int) -> int:
    """Adds a sequence with its start and returns its row. There must be room and a free block."""
    arena = views(address)
    header, sequences = arena.header, arena.sequences
    row = int(header[SEQUENCES])
    header[SEQUENCES] += 1
    sequences[row, LAST] = NOTHING
    sequences[row, KIND] = kind
    sequences[row, AGE] = age
    sequences[row, FORM] = 0
    sequences[row, TRACK:] = NOTHING
    if kind == OPEN:
        _track_beginnings(sequences, row)
    _write(address, row, PROMPT_START if kind == PROMPT else START)
    sequences[row, FIRST] = sequences[row, LAST]
    return row


@native
def _track_beginnings(sequences: Array, row: int) -> None:
    """All responses begin at the same position; tracks those of the newest finished ones."""
    at, other = TRACK, row - 1
    while other >= 0 and at < FIELDS:
        if sequences[other, KIND] == HISTORY or sequences[other, KIND] == CLOSED:
            sequences[row, at], sequences[row, at + 1] = sequences[other, FIRST], ONE
            at += 2
        other -= 1


@native
def _advance_tracks(sequence: Array, token: int, tokens: Array, after: Array) -> None:
    """Moves the tracked positions by one token. One that reaches the end of a sequence is dropped."""
    for at in range(TRACK, FIELDS, 2):
        if sequence[at] >= 0:
            place = following(sequence[at], after)
            sequence[at] = place if place >= 0 and tokens[place] >= 0 else NOTHING
            same = sequence[at] >= 0 and tokens[place] == token
            sequence[at + 1] += (ONE if same else 0) // FADE - sequence[at + 1] // FADE


@native
def append(address: int, row: int, fresh: Array) -> None:
    """Appends checked tokens to a sequence; there must be enough blocks."""
    arena = views(address)
    header, tokens, after, sequences = arena.header, arena.tokens, arena.after, arena.sequences
    for token in fresh:
        _write(address, row, token)
        if sequences[row, KIND] == OPEN:
            _advance_tracks(sequences[row], token, tokens, after)
    header[TOKENS] += len(fresh)


@native
def extend(addresses: NDArray[np.int64], rows: Array, fresh: Array, offsets: Array) -> tuple[int, int]:
    """Appends `fresh[offsets[i]:offsets[i + 1]]` to row `rows[i]` of arena i: everything or nothing.

    Returns the result and the i it is about. An arena may occur several times, with different rows.
    """
    for i in range(len(rows)):
        memory(addresses[i], HEADER)[NEED] = 0
    for i in range(len(rows)):
        arena = views(addresses[i])
        header, sequences = arena.header, arena.sequences
        if rows[i] < 0 or rows[i] >= header[SEQUENCES] or sequences[rows[i], KIND] != OPEN:
            return NOT_OPEN, i
        count = int(offsets[i + 1] - offsets[i])
        for at in range(offsets[i], offsets[i + 1]):
            if fresh[at] < 0 or fresh[at] >= header[VOCABULARY]:
                return BAD_TOKEN, i
        left = BLOCK - 1 - int(sequences[rows[i], LAST]) % BLOCK
        if count > left:
            header[NEED] += -(-(count - left) // BLOCK) * BLOCK
        if header[USED] + header[NEED] > header[SLOTS]:
            return FULL, i
    for i in range(len(rows)):
        if offsets[i + 1] > offsets[i]:
            append(addresses[i], rows[i], fresh[offsets[i] : offsets[i + 1]])
    return DONE, 0


@native
def move(source: int, target: int) -> None:
    """Copies an arena into a larger empty one; chains keep their order."""
    header, tokens, long, short, long_heads, short_heads, after, before, owner, sequences = views(source)
    header2, tokens2, long2, short2, long_heads2, short_heads2, after2, before2, owner2, sequences2 = views(target)
    used, blocks, count = int(header[USED]), int(header[USED]) // BLOCK, int(header[SEQUENCES])
    for entry in (USED, SEQUENCES, TOKENS):
        header2[entry] = header[entry]
    tokens2[:used] = tokens[:used]
    after2[:blocks] = after[:blocks]
    before2[:blocks] = before[:blocks]
    owner2[:blocks] = owner[:blocks]
    sequences2[:count] = sequences[:count]
    orders = int(header[LONG]), int(header[SHORT])
    heads = int(header2[HEADS])
    # A chain splits into several of the larger table; slots are appended to each, the newest first.
    tail = np.full(heads, NOTHING, np.int32)
    for head in range(len(long_heads)):
        slot = int(long_heads[head])
        while slot >= 0:
            bucket, _ = buckets(slot, tokens, before, orders[0], orders[1], heads)
            if tail[bucket] < 0:
                long_heads2[bucket] = slot
            else:
                long2[tail[bucket]] = slot
            tail[bucket] = slot
            slot = int(long[slot])
    tail[:] = NOTHING
    for head in range(len(short_heads)):
        slot = int(short_heads[head])
        while slot >= 0:
            _, bucket = buckets(slot, tokens, before, orders[0], orders[1], heads)
            if tail[bucket] < 0:
                short_heads2[bucket] = slot
            else:
                short2[tail[bucket]] = slot
            tail[bucket] = slot
            slot = int(short[slot])
