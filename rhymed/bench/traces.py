"""Recorded responses of several epochs, from a file or made up, as the benchmarks of drafts replay them.

A file is an `.npz` with one entry a response in `prompt_index`, `epoch`, `sample` and `reward`, its tokens at
`tokens[offsets[i]:offsets[i + 1]]`, optionally the `key` of its noise (see `rhymed.histospec.sampling.noise`), and prompts
likewise in `prompt_tokens` and `prompt_offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

WORDS = 4096  # the made-up vocabulary
END = 1  # closes every made-up response


@dataclass(frozen=True)
class Response:
    prompt: int
    epoch: int
    sample: int
    reward: float
    tokens: Tokens
    key: int | None = None  # of the noise that the tokens were drawn by


@dataclass(frozen=True)
class Trace:
    """`prompts[i]` are prompt i's tokens; responses are sorted by epoch, prompt and sample."""

    prompts: list[Tokens]
    responses: list[Response]

    @property
    def epochs(self) -> list[int]:
        return sorted({response.epoch for response in self.responses})

    def of(self, epoch: int, prompt: int | None = None) -> list[Response]:
        return [r for r in self.responses if r.epoch == epoch and prompt in (None, r.prompt)]


def load(path: Path) -> Trace:
    """KeyError or ValueError where the file is not what the top of this module says."""
    with np.load(path) as file:
        tokens, offsets = file["tokens"].astype(np.int32), file["offsets"]
        prompt_tokens, prompt_offsets = file["prompt_tokens"].astype(np.int32), file["prompt_offsets"]
        columns = [file[name].tolist() for name in ("prompt_index", "epoch", "sample", "reward")]
        keys = file["key"].tolist() if "key" in file else [None] * len(columns[0])
    responses = [
        Response(*fields, tokens[offsets[i] : offsets[i + 1]], keys[i])  # type: ignore[call-arg]
        for i, fields in enumerate(zip(*columns, strict=True))
    ]
    responses.sort(key=lambda response: (response.epoch, response.prompt, response.sample))
    return Trace([prompt_tokens[a:b] for a, b in pairwise(prompt_offsets)], responses)


def record(model: Path, prompts: int = 32, samples: int = 8, epochs: int = 3) -> Trace:
    """What a model writes at temperature 1, each response by the noise of its own key; rewards are 0."""
    from rhymed.bench.policy.engine import Request, Rig
    from rhymed.bench.policy.workload import workloads
    from rhymed.bench.spec import engine

    workload = next(iter(workloads(model)))
    texts = workload.prompts[:prompts]
    trace = Trace([np.array(text, np.int32) for text in texts], [])
    rig = Rig(engine(workload, "keyed", max(map(len, texts)) + workload.longest))
    rig.ready()
    try:
        for epoch in range(1, epochs + 1):
            names = [(prompt, sample) for prompt in range(len(texts)) for sample in range(samples)]
            keys = [(epoch * len(texts) + prompt) * samples + sample for prompt, sample in names]
            asked = [
                Request(texts[prompt], workload.longest, 1.0, key)
                for (prompt, _), key in zip(names, keys, strict=True)
            ]
            made = rig.run(asked, 64, whole=True).made
            trace.responses.extend(
                Response(prompt, epoch, sample, 0.0, np.array(tokens, np.int32), key)
                for (prompt, sample), tokens, key in zip(names, made, keys, strict=True)
            )
    finally:
        rig.close()
    return trace


def synthetic(prompts: int = 16, samples: int = 8, epochs: int = 3, seed: int = 0, noise: float = 0.02) -> Trace:
    """Responses that rhyme: each prompt has a plan of phrases with alternatives whose odds drift between epochs.

    Lengths run from about 30 to 1,500 tokens, entropy is 0.1 to 0.4 nats a token. Right alternatives make the reward.
    """
    random = np.random.default_rng(seed)
    trace = Trace([], [])
    stock = [random.integers(2, WORDS, random.integers(4, 16)) for _ in range(300)]  # phrases that prompts share
    for prompt in range(prompts):
        own = random.integers(2, WORDS, 40)  # the names and numbers of this prompt
        plan = _plan(random, stock, own, round(float(np.exp(random.uniform(np.log(4), np.log(200))))))
        trace.prompts.append(np.concatenate([own, random.integers(2, WORDS, 20)]).astype(np.int32))
        odds = [random.normal(0.0, 1.5, len(alternatives)) for alternatives in plan]
        for epoch in range(1, epochs + 1):
            for sample in range(samples):
                tokens, reward = _response(random, plan, odds, noise)
                trace.responses.append(Response(prompt, epoch, sample, reward, tokens))
            # The policy learns: the first alternative of each phrase is the right one, and all odds wander.
            odds = [o + random.normal(0, 0.2, len(o)) + 0.3 * (np.arange(len(o)) == 0) for o in odds]
    trace.responses.sort(key=lambda response: (response.epoch, response.prompt, response.sample))
    return trace


Phrases = list[list[NDArray[np.int64]]]


def _plan(
    random: np.random.Generator, stock: list[NDArray[np.int64]], own: NDArray[np.int64], length: int
) -> Phrases:
    plan = []
    for _ in range(length):
        alternatives = []
        for _ in range(random.integers(1, 5)):
            phrase = stock[random.integers(len(stock))].copy()
            places = random.random(len(phrase)) < 0.3
            phrase[places] = random.choice(own, places.sum())
            alternatives.append(phrase)
        plan.append(alternatives)
    return plan


def _response(
    random: np.random.Generator, plan: Phrases, odds: list[NDArray[np.float64]], noise: float
) -> tuple[Tokens, float]:
    parts, right = [], 0
    for alternatives, logits in zip(plan, odds, strict=True):
        if random.random() < 0.05:  # a thought left out, or had twice
            continue
        shares = np.exp(logits - logits.max())
        choice = int(random.choice(len(alternatives), p=shares / shares.sum()))
        right += choice == 0
        phrase = alternatives[choice].copy()
        slips = random.random(len(phrase)) < noise
        phrase[slips] = random.integers(2, WORDS, slips.sum())
        parts.append(phrase)
    tokens = np.concatenate([*parts, [END]]).astype(np.int32)
    return tokens, float(right > 0.45 * len(plan))
