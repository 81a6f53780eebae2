"""A run's folder with a real store in it, written without a process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rhymed.core.messages import (
    EVAL,
    MarkSamples,
    PromptRow,
    PutPrompts,
    PutScores,
    SampleId,
    SampleInfo,
    Score,
)
from rhymed.inputs.rows import prompt_id
from rhymed_store.client import NewSample
from tests.store.stores import LocalStore

ROWS = [{"prompt": "how many apples are there?", "answer": "7"}, {"prompt": "how many pears are there?"}]
APPLES, PEARS = map(prompt_id, ROWS)

Sample = tuple[int, str, int, Sequence[int], float | None]
"""step, prompt, index, tokens, reward"""


def two_epochs() -> list[Sample]:
    """Two prompts, two responses each; in the second epoch (steps 2 and 3) nearly the same."""
    made: list[Sample] = []
    for prompt, step in ((APPLES, 0), (PEARS, 1)):
        for index in (0, 1):
            tokens = [40 + step + token for token in range(10 + 10 * step + index)]
            made.append((step, prompt, index, tokens, 0.5 * index))
            made.append((step + 2, prompt, index, [*tokens[:-1], 90], 1.0))
    return made


def drafts_of(id: SampleId, length: int) -> NDArray[np.bool_] | None:
    """From step 2 on the first tokens were accepted drafts, before that it is not known."""
    return np.arange(length) < length // 2 if 2 <= id.step < EVAL else None


def parts_of(id: SampleId, reward: float) -> dict[str, float]:
    """The first response of step 2 was scored by two scorers."""
    return {"exact": reward, "format": 0.25} if (id.step, id.index) == (2, 0) else {}


def write_store(folder: Path, samples: Sequence[Sample], dropped: Sequence[SampleId] = ()) -> None:
    local = LocalStore(folder / "store")
    rows = [PromptRow(prompt=prompt_id(row), row=json.dumps(row)) for row in ROWS]
    local.do(lambda batch: local.writes.put_prompts(batch, PutPrompts(rows=rows)))
    for step, prompt, index, tokens, reward in samples:
        id = SampleId(step, prompt, index)
        info = SampleInfo(
            id=id,
            prompt_length=3,
            length=len(tokens),
            finish_reason="stop",
            versions=[(max(0, step), len(tokens))] if tokens else [],
        )
        array, logprobs = np.asarray(tokens, np.uint32), np.zeros(len(tokens) if step >= 0 else 0, np.float32)
        local.put(NewSample(info, np.arange(3, dtype=np.uint32), array, logprobs, drafts_of(id, len(tokens))))
        if reward is not None:
            scores = PutScores(scores=[Score(id=id, reward=reward, parts=parts_of(id, reward))])
            local.do(lambda batch, scores=scores: local.writes.put_scores(batch, scores))
    marks = MarkSamples(samples=list(dropped), state="dropped", reason="scorer timed out")
    local.do(lambda batch: local.writes.mark(batch, marks))
    local.database.close()


def write_tokenizer(folder: Path, first: str = "<pad>") -> Path:
    """Byte-level, 258 tokens: 2 is `!`, 40 is `G`. Returns the folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([first, "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 264}))
    return folder
