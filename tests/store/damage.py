"""Stores with a bit of everything, what they hold as it can be compared, and ways to damage them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rhymed.core.messages import (
    EVAL,
    ForgetLogprobs,
    GetJournal,
    GetPartials,
    GetSamples,
    MarkSamples,
    OpenRun,
    PromptRow,
    PutPartials,
    PutPrompts,
    PutScores,
    SampleId,
    Score,
)
from rhymed_store.browse import Browse
from rhymed_store.database.tables import Reader
from tests.store.stores import OTHER, PROMPT, LocalStore, new_sample

PROMPTS = (PROMPT, OTHER, "00000000000000ff")
LENGTHS = (0, 1, 40, 700, 3000, 20_000)
BEGUN = SampleId(6, PROMPT, 9)


def write(folder: Path, seed: int = 0) -> None:
    """Imported, forgotten, live, scored, trained, dropped, held-out and begun samples, and their prompts."""
    local, rng = LocalStore(folder), np.random.default_rng(seed)
    local.do(lambda b: local.writes.open_run(b, OpenRun(run="run", fingerprint="{}", id="a1")))
    rows = [PromptRow(prompt=prompt, row=msgspec.json.encode({"prompt": prompt}).decode()) for prompt in PROMPTS]
    local.do(lambda b: local.writes.put_prompts(b, PutPrompts(rows=rows)))
    for step in (-1, 0, 1, 2, 3, 4, 5, EVAL + 1):
        length = [int(rng.choice(LENGTHS)) for _ in range(12)]
        samples = [new_sample(step, i, prompt=PROMPTS[i % 3], length=length[i]) for i in range(12)]
        local.put(*samples)
        ids = [sample.info.id for sample in samples]
        scores = PutScores(scores=[Score(id=id, reward=float(rng.random())) for id in ids[:9]])
        local.do(lambda b, scores=scores: local.writes.put_scores(b, scores))
        for state, some in (("trained", ids[:4]), ("dropped", [*ids[8:10], SampleId(step, OTHER, 40)])):
            mark = MarkSamples(samples=some, state=state, reason="slow" if state == "dropped" else "")
            local.do(lambda b, mark=mark: local.writes.mark(b, mark))
    local.do(lambda b: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=2)))
    for start in range(0, 600, 30):
        part = PutPartials(samples=[BEGUN], starts=[start], lengths=[30])
        tokens = np.arange(start, start + 30, dtype="<u4").tobytes()
        local.do(lambda b, part=part, tokens=tokens: local.writes.put_partials(b, part, tokens))
    local.database.close()


def content(folder: Path) -> dict[str, Any]:
    """Everything that can be asked, by the name of what it is about."""
    with Reader(folder) as reader:
        browse, found = Browse(reader), {}
        with reader.read() as txn:
            live_from = reader.number(txn, "forgotten")
        for prompt in browse.ids():
            found[f"prompt {prompt}"] = browse.row(prompt)
            for response in browse.responses(prompt):
                id = response.info.id
                fields = [response.info, response.state, response.reason, response.tokens.tolist()]
                if response.drafted is not None:
                    found[f"drafted {id}"] = response.drafted.tolist()
                if live_from <= id.step < EVAL and response.state != "dropped":  # those are never trained
                    asked = GetSamples(samples=[id], logprobs=True)
                    fields.append(bytes(browse.samples(asked)[1][1]))
                found[f"sample {id}"] = fields
        for entry in browse.journal(GetJournal(from_step=-(2**31))).entries:
            if entry.state != "begun":
                found[f"line {entry.id}"] = entry
        begun, tokens = browse.partials(GetPartials(samples=[BEGUN]))
        found["begun"] = (begun.lengths, bytes(tokens[0]) if tokens else b"")
        return found
