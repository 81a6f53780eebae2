from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import DataError
from rhymed.core.messages import SampleId
from rhymed_workers.engines.base import Output, Sampling, Task
from rhymed_workers.engines.build import DatasetEngine, build_engine

ROWS = {"one": {"prompt": "1", "answer": "yes"}, "two": {"prompt": "2", "answer": "far too long an answer"}}


@pytest.fixture
async def engine(tiny_model: Path) -> Any:
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "rollout": {"max_prompt_length": 64, "max_response_length": 8},
            "trainer": {"algorithm": "sft"},
        }
    )

    async def read_rows(prompts: Sequence[str]) -> list[Any]:
        return [ROWS[prompt] for prompt in prompts]

    made = build_engine(config, read_rows)
    assert isinstance(made, DatasetEngine)
    await made.open()
    yield made
    await made.close()


async def answer(engine: DatasetEngine, prompt: str) -> Output:
    sampling = Sampling(temperature=1, top_p=1, top_k=0, min_p=0, max_tokens=8, seed=0)
    return await engine.generate(Task(SampleId(3, prompt, 0), [5, 6], sampling))


async def test_a_response_is_the_rows_answer_under_the_loaded_version(engine: DatasetEngine) -> None:
    await engine.load(3, Path("nowhere"))
    output = await answer(engine, "one")
    assert len(output.tokens) == 4
    assert output.tokens[-1] == 1  # the end
    assert np.isnan(output.logprobs).all()  # nobody sampled it
    assert (output.finish_reason, output.versions) == ("stop", [(3, 4)])
    assert engine.progress() == {}


async def test_an_answer_that_does_not_fit_is_the_rows_fault(engine: DatasetEngine) -> None:
    with pytest.raises(DataError, match=r"prompt two: the answer has 23 tokens, rollout.max_response_length is 8"):
        await answer(engine, "two")
