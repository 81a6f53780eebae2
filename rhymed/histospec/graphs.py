"""Sizes of the steps of an engine that drafts: draft lengths and captured batches that fit together, and the
most tokens that a step may verify. Pure.

vLLM pads a batch to the next captured size. With drafts its first model runner rounds these sizes up to multiples of
1 + draft length, and drops those above its limit (`CompilationConfig.adjust_cudagraph_sizes_for_spec_decode`, vLLM
0.26 to 0.33). A length of 32 so gives multiples of 33, which no kernel's tiles divide; 31 gives multiples of 32, 15
of 16 and 7 of 8.

The mode is vLLM's default, FULL_AND_PIECEWISE: one graph where all requests have the longest draft, else layers are
graphs and attention is launched between them. FULL would make every batch one graph, but its results are wrong: it is
captured as if each batch had a query of all tokens, while FlashAttention 3's schedule of a step (vLLM 0.26,
`FlashAttentionMetadataBuilder`) is made for the step's longest query. On an H200 prompts that were computed in such a
graph left wrong keys and values in the prefix cache (docs/gpu.md).
"""

from __future__ import annotations

from typing import Any

ROWS = (128, 64, 32, 16, 8)  # 1 + draft length: multiples of a tile of matrix kernels
LARGEST = 512  # tokens of the largest graph, as vLLM's; more where plain decoding of all requests needs it

LOGITS_BYTES = 1 << 30  # of a step that verifies drafts: what vLLM's second model runner takes for a chunk


def verifying_tokens(requests: int, row_bytes: int) -> int:
    """Most tokens of a step by the budget "rate", drafted ones and one of each request: as many as have logits of
    `LOGITS_BYTES`, because that memory is lost to the KV cache. Each request that begins in the
    step has one row more. `requests`: most that run at once. `row_bytes`: logits of one token."""
    return max(requests, LOGITS_BYTES // row_bytes)


def draft_length(longest: int) -> int:
    """Most drafted tokens per request for an engine with graphs: at most `longest`, which stays if it is below 7."""
    return next((rows - 1 for rows in ROWS if rows - 1 <= longest), longest)


def capture_sizes(requests: int, drafts: int) -> list[int]:
    """Tokens of the batches to capture: multiples of 1 + drafts, close together where batches are small. vLLM drops
    those that exceed its tokens per step. `requests`: most that run at once. `drafts`: most drafted tokens of one."""
    rows = 1 + drafts
    most = -(-min(max(LARGEST, requests), requests * rows) // rows)
    sizes, multiple = [], 1
    while multiple < most:
        sizes.append(multiple * rows)
        multiple += max(1, multiple // 8)
    return [*sizes, most * rows]


def compilation(requests: int, drafts: int) -> dict[str, Any]:
    """vLLM's `compilation_config` for an engine that drafts on a GPU."""
    return {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": capture_sizes(requests, drafts)}


def captured(config: Any) -> list[int]:
    """The sizes that an engine pads its batches to, from vLLM's `compilation_config` after the KV cache was made;
    empty without graphs."""
    mode = getattr(config, "cudagraph_mode", None)
    if mode is None or getattr(mode, "name", "NONE") == "NONE":
        return []
    return sorted(getattr(config, "cudagraph_capture_sizes", None) or ())
