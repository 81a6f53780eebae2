"""Every sampler with every drafter samples from the policy: a real engine on a model whose policy is a table.

Two numbers tell. A token's log-prob is that of the table after temperature, min-p, top-k and top-p; and each token
follows each as often as these log-probs say.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed.histospec.drafts.yields import accepted
from rhymed_workers.engines.base import Output, Sampling, Task
from rhymed_workers.trainer.policy.head import among_kept
from tests.packages import needs
from tests.tiny import write_chain_model

pytestmark = [
    needs("vllm"),
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # vLLM's and torch's own
]

SIZE, WORDS, LENGTH, SAMPLES = 264, slice(2, 14), 120, 24
PROMPT = [2, 3, 4, 5, 6, 7, 8, 9]
# temperature, top_p, top_k, min_p; of one batch, as a run's training and evaluation samples are
SAMPLINGS = [
    (1.0, 1.0, 0, 0.0),
    (0.6, 1.0, 0, 0.0),
    (1.5, 1.0, 0, 0.0),
    (1.0, 0.8, 0, 0.0),
    (0.7, 0.9, 5, 0.0),
    (1.0, 1.0, 3, 0.0),
    (0.0, 1.0, 0, 0.0),
]
PAIRS = [("keyed", "none"), ("keyed", "history"), ("vllm", "history")]


@pytest.fixture(scope="module")
def table() -> NDArray[np.float64]:
    """Twelve tokens follow each other, the likeliest with 0.2 to 0.6, so that some drafts are right and some not."""
    table = np.full((SIZE, SIZE), -40.0)
    table[:, WORDS] = np.random.default_rng(1).normal(0, 1.2, (SIZE, WORDS.stop - WORDS.start))
    return table.astype(np.float32).astype(np.float64)


@pytest.fixture(scope="module")
def model(table: NDArray[np.float64], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain") / "model"
    write_chain_model(folder, table)
    return folder


def processed(table: NDArray[np.float64], temperature: float, top_p: float, top_k: int, min_p: float) -> Any:
    """Log-probs of each row, in float64 and in the order that the field uses: temperature, min-p, top-k, top-p."""
    z = table / (temperature or 1.0)
    if min_p:
        z = np.where(z < z.max(-1, keepdims=True) + np.log(min_p), -np.inf, z)
    if top_k:
        z = np.where(z < np.sort(z)[:, -top_k, None], -np.inf, z)
    order = np.argsort(-z)
    p = np.exp(z - np.logaddexp.reduce(z, -1, keepdims=True))
    ranked = np.take_along_axis(p, order, -1)
    outside = np.empty(z.shape, bool)
    np.put_along_axis(outside, order, ranked.cumsum(-1) - ranked >= top_p, -1)
    z = np.where(outside, -np.inf, z)
    return z - np.logaddexp.reduce(z, -1, keepdims=True)


async def sampled(model: Path, sampler: str, method: str, samplings: list[Any]) -> tuple[list[list[Output]], int]:
    """`SAMPLES` outputs for each of `samplings`, all in the same batches, and how many of the tokens were drafts."""
    from rhymed_workers.engines.vllm import VllmEngine

    config = Config.model_validate(
        {
            "model": {"path": str(model), "dtype": "float32"},
            "rollout": {
                "sampler": sampler,
                "max_prompt_length": 16,
                "max_response_length": LENGTH,
                "kv_cache_gib": 0.1,
            },
            "drafts": {"method": method},
        }
    )
    engine = VllmEngine(config, model)
    await engine.open()
    try:
        await engine.load(0, model / "model.safetensors")
        tasks = [
            Task(
                SampleId(step=0, prompt=f"{number:016x}", index=index),
                PROMPT,
                Sampling(*sampling, max_tokens=LENGTH, seed=1000 * number + index),
            )
            for index in range(SAMPLES)
            for number, sampling in enumerate(samplings)
        ]
        outputs = await asyncio.gather(*map(engine.generate, tasks))
        reports = await engine.drafting([task.id for task in tasks])
    finally:
        await engine.close()
    drafted = [accepted(report.yields, LENGTH).sum() if report.yields is not None else 0 for report in reports]
    return [outputs[number :: len(samplings)] for number in range(len(samplings))], int(sum(drafted))


@pytest.fixture(scope="module")
def tokens_seen() -> dict[int, Any]:
    """Those that the first keyed engine drew; whatever drafts the others have, they draw the same."""
    return {}


@pytest.fixture(autouse=True)
def environment() -> Any:
    before = dict(os.environ)  # vLLM's processes inherit what the engine sets there; those of other tests must not
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(("sampler", "method"), PAIRS)
def test_samples_are_of_the_policy(
    model: Path, table: NDArray[np.float64], tokens_seen: dict[int, Any], sampler: str, method: str
) -> None:
    min_p = [(1.0, 1.0, 0, 0.2)] if sampler == "keyed" or method == "none" else []
    samplings = SAMPLINGS + min_p
    found, drafted = asyncio.run(sampled(model, sampler, method, samplings))
    assert (drafted > 500) == (method != "none"), drafted
    if sampler == "keyed":
        drawn = [[output.tokens for output in outputs] for outputs in found]
        first = tokens_seen.setdefault(0, drawn)
        assert all(np.array_equal(one, other) for one, other in zip(drawn, first, strict=True))
    for sampling, outputs in zip(samplings, found, strict=True):
        logp = processed(table, *sampling)
        tokens = np.array([output.tokens for output in outputs], np.int64)
        before = np.hstack([np.full((SAMPLES, 1), PROMPT[-1]), tokens[:, :-1]])
        said = np.array([output.logprobs for output in outputs])
        mismatch = np.abs(said - logp[before, tokens]).max()
        assert mismatch < 1e-4, (sampling, mismatch)
        kept = [output.floors for output in outputs if output.floors is not None]
        if sampler == "vllm" or not Sampling(*sampling, max_tokens=1, seed=0).cuts:
            assert not kept
        else:  # what the trainer makes of its own log-probs among all tokens
            floors, among_all = np.array(kept), processed(table, sampling[0], 1.0, 0, 0.0)
            assert ((among_all[before] >= floors[..., None]) == np.isfinite(logp[before])).all(), sampling
            rows = torch.from_numpy(among_all[before].reshape(-1, SIZE))
            drawn_N, floor_N = torch.from_numpy(tokens.reshape(-1)), torch.from_numpy(floors.reshape(-1))
            found_N = among_kept(rows, drawn_N, floor_N).gather(1, drawn_N[:, None]).numpy().reshape(said.shape)
            assert np.abs(said - found_N).max() < 1e-4, sampling
            assert abs(np.exp(found_N - said).mean() - 1) < 1e-5, sampling
        if sampling[0] == 0:
            assert (tokens == logp.argmax(-1)[before]).all()
            continue
        counts = np.zeros((SIZE, SIZE))
        np.add.at(counts, (before, tokens), 1)
        expected = np.exp(logp) * counts.sum(-1, keepdims=True)
        counted = expected > 4
        chi2 = ((counts - expected) ** 2)[counted] / expected[counted]
        free = counted.sum() - counted.any(-1).sum()
        assert chi2.sum() < free + 5 * np.sqrt(2 * free), (sampling, chi2.sum(), free)
