"""The kernels in Triton's interpreter, against `cpu`: `python -m tests.histospec.sampling.interpreted CHECK`.

CHECK: short, slots, sampler, or a number of draws. Prints JSON. It is a program because the interpreter must be
chosen before a process imports Triton.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("ignore")  # numpy's, of what is no number

import numpy as np
import torch

from rhymed.histospec.sampling import cpu, fused, kernels, noise
from tests.histospec.sampling import operations
from tests.histospec.sampling.test_operations import case


def differing(rows: cpu.Rows, *, kind=torch.float32, block=128, tile=256, logprobs=True) -> dict[str, float]:
    """How many of the tokens differ, of how many, and the largest difference of two log-probs."""
    logits = torch.from_numpy(rows.logits_NV).to(kind)
    rows = rows._replace(logits_NV=logits.float().numpy())
    tokens, values = cpu.verify(rows, logprobs)
    drafts = torch.from_numpy(rows.drafts.astype(np.int32)) if len(rows.drafts) else None
    made = fused.verify(rows, logits, drafts, logprobs, block=block, tile=tile)
    apart = np.abs(made[1].view(torch.float32).numpy() - values)
    known = np.isfinite(values)
    return {
        "drawn": int((tokens >= 0).sum()),
        "differ": int((made[0].numpy() != tokens).sum()),
        "logprob": float(apart[known].max(initial=0)),
    }


def drafted() -> list[dict[str, float]]:
    """Requests with drafts, greedy ones among them: types of logits, and vocabularies that fill no block."""
    return [
        differing(case(1)),
        differing(case(2), kind=torch.bfloat16, block=512),
        differing(case(3, vocabulary=64), kind=torch.float16, block=64, tile=256),
        differing(case(4, vocabulary=65), block=64, tile=8, logprobs=False),
    ]


def one_each(logits: np.ndarray, seed: int, scale: float | np.ndarray = 1.0) -> cpu.Rows:
    """A request without drafts for each row."""
    rng, count = np.random.default_rng(seed), len(logits)
    return cpu.Rows(
        logits.astype(np.float32),
        np.arange(count + 1),
        np.empty(0, np.int64),
        rng.integers(0, 2**64 - 1, count, dtype=np.uint64),
        rng.integers(0, 2**31, count),
        np.full(count, scale, np.float32),
    )


def ties(count: int = 128) -> dict[str, dict[str, float]]:
    """Rows whose best two tokens are as close as float32 logits can be, in one block and in two. `blind`: without the
    window for near ties, which shows that the rows are near ties."""
    rng = np.random.default_rng(7)
    rows = one_each(rng.standard_normal((count, 200)), 7)
    for row, logits_V in enumerate(rows.logits_NV):
        g = noise.gumbel(int(rows.key_B[row]), int(rows.position_B[row]), 200)
        best = int(np.argmax(logits_V + g))
        other = (best + (1 if row % 2 else 130)) % 200
        logits_V[other] = np.float32(logits_V[best] + g[best] - g[other])
    exact = differing(rows)
    kernels.ABSOLUTE = kernels.RELATIVE = kernels.tl.constexpr(0.0)
    return {"exact": exact, "blind": differing(rows)}


def odd() -> dict[str, float]:
    """What is no number, infinite, masked or equal."""
    x = np.random.default_rng(3).standard_normal((12, 300)) * 3
    x[0] = np.nan
    x[1, ::2] = np.nan
    x[2] = -np.inf
    x[3, 1:] = -np.inf
    x[4, :290] = -np.inf  # the first block and more
    x[5, [7, 250]] = np.inf
    x[6] = 0.0  # greedy: the lowest id
    x[7, [200, 3]] = 50.0  # greedy: the lower id
    x[8, 5] = 3e38
    x[9] = 1e30
    x[10] = -1e30
    x[11] = np.linspace(-1e4, 1e4, 300)
    scale = np.where((np.arange(12) == 6) | (np.arange(12) == 7), 0, 1.0)
    return differing(one_each(x, 3, scale))


def many(draws: int) -> dict[str, float]:
    """`draws` rows of 96 logits in two blocks: flat and peaked ones, temperatures from 0.3 to 3."""
    total = {"drawn": 0, "differ": 0, "logprob": 0.0}
    step = 16_384
    for at in range(0, draws, step):
        rng, count = np.random.default_rng(at), min(step, draws - at)
        spread = rng.uniform(0.0, 8.0, (count, 1))
        rows = one_each(rng.standard_normal((count, 96)) * spread, at, rng.uniform(0.3, 3.0, count))
        found = differing(rows, block=64, tile=step)
        total = {
            "drawn": total["drawn"] + found["drawn"],
            "differ": total["differ"] + found["differ"],
            "logprob": max(total["logprob"], found["logprob"]),
        }
        print(total, file=sys.stderr, flush=True)
    return total


def slots() -> dict[str, int]:
    """Rows of model runner V2, whose keys, temperatures and positions are on the device: of requests in any order,
    keys of 64 bits, positions up to the largest, greedy ones among them."""
    from rhymed.histospec.sampling import places

    rng, count = np.random.default_rng(5), 300
    keys = torch.from_numpy(rng.integers(0, 2**64 - 1, 400, dtype=np.uint64).view(np.int64))
    temperatures = torch.from_numpy(rng.choice(np.array([0.0, 0.7, 1.0], np.float32), 400))
    slot_N = torch.from_numpy(rng.integers(0, 400, count).astype(np.int32))
    pos_N = torch.from_numpy(rng.choice([0, 1, 77, 2**31 - 2], count))
    z_NV = torch.from_numpy(rng.standard_normal((count, 200)).astype(np.float32))
    expected = places.draw(z_NV, slot_N, pos_N, keys, temperatures)
    made = fused.draw(z_NV, slot_N, pos_N, keys, temperatures, block=128, tile=256)
    key_N, scale_N = keys[slot_N.long()], (temperatures[slot_N.long()] != 0).float()
    other, _ = operations.draw(z_NV, key_N, pos_N + 1, scale_N, False)
    return {"drawn": count, "differ": int((made != expected).sum()), "torch": int((other != expected).sum())}


def sampler() -> dict[str, float]:
    """vLLM's batch through our sampler: all kinds of requests with drafts, on the CPU and by the kernels."""
    from rhymed.histospec.sampling import places
    from tests.histospec.sampling.test_sampler import attached, mixed, rows

    drafts = [[7, 7], [5], []] * 9
    x = rows(sum(len(draft) + 1 for draft in drafts))
    right = attached(mixed(27)).verify(x.clone(), drafts).sampled_token_ids[:, 0].tolist()
    drafts = [[token, 7][: len(draft)] for token, draft in zip(right, drafts, strict=True)]
    expected = attached(mixed(27)).verify(x.clone(), drafts)
    places.on_cpu = lambda logits: False
    made = attached(mixed(27)).verify(x.clone(), drafts)
    apart = made.logprobs_tensors.logprobs - expected.logprobs_tensors.logprobs
    return {
        "drawn": int((expected.sampled_token_ids >= 0).sum()),
        "differ": int((made.sampled_token_ids != expected.sampled_token_ids).sum()),
        "logprob": float(apart.abs().max()),
    }


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "short":
        found = {"drafted": drafted(), "ties": ties(), "odd": odd()}
    elif sys.argv[1] == "slots":
        found = {"slots": slots()}
    elif sys.argv[1] == "sampler":
        found = {"sampler": sampler()}
    else:
        found = {"many": many(int(sys.argv[1]))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
