"""Answers about one prompt and about one sample: rows, texts, and which tokens were drafted.

Pure apart from reading the store. Without a tokenizer a response is its token ids, and `missing` says why. A sample
that is damaged at rest has no text, and says so; the prompt's other samples have.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from rhymed.dashboard.data.tokens import tokens_of
from rhymed.errors import RowUnsuitable, StoreDamaged, UnknownSample
from rhymed.history.folder import RunFolder
from rhymed.history.pieces import pieces
from rhymed.inputs.rows import prompt_text
from rhymed.messages import GetSamples, SampleId, SampleInfo
from rhymed_store.inspect.browse import Browse, Response
from rhymed_store.inspect.epochs import epochs_of, title
from rhymed_workers.scorers.answer import reference

PREVIEW = 300  # characters
PREVIEW_TOKENS = 400  # decoded for them
MOST_PREVIEWS = 512  # per prompt, of its newest samples

Row = dict[str, Any]


def prompt_page(folder: RunFolder, prompt: str) -> Row:
    """Raises `UnknownSample` for a prompt without samples."""
    responses, missing = _responses(folder.browse, prompt)
    if not responses:
        raise UnknownSample(f"the store has no samples of prompt {prompt}")
    epochs = epochs_of(response.info.id.step for response in responses)
    previews = _previews(folder, [response for response in responses if response.info.id not in missing])
    by_step: dict[int, list[Row]] = defaultdict(list)
    for response in responses:
        id = response.info.id
        by_step[id.step].append({**_row(response), "text": previews.get(id)})
    return {
        "id": prompt,
        "text": text_of(folder.browse, prompt),
        **columns_of(folder.browse, prompt),
        "epochs": [
            {"epoch": epochs[step], "name": title(epochs[step]), "step": step, "samples": by_step[step]}
            for step in epochs
        ],
        "missing": "; ".join([folder.missing] * bool(folder.missing) + sorted(set(missing.values()))),
    }


def sample_page(folder: RunFolder, sample: SampleId, *, by_token: bool = False) -> Row:
    """`by_token`: with `tokens`. Raises `UnknownSample`."""
    responses, missing = _responses(folder.browse, sample.prompt)
    response = next((response for response in responses if response.info.id == sample), None)
    if response is None:
        raise UnknownSample(f"the store has no sample {sample}")
    parts = [] if sample in missing else pieces(folder.decode or _ids, response.tokens, response.drafted)
    return {
        **_row(response),
        "epoch": epochs_of(response.info.id.step for response in responses)[sample.step],
        "prompt": text_of(folder.browse, sample.prompt),
        **columns_of(folder.browse, sample.prompt),
        "pieces": [piece._asdict() for piece in parts if piece.text],
        **(tokens_of(folder, response) if by_token and sample not in missing else {}),
        "missing": missing.get(sample) or folder.missing,
    }


def text_of(browse: Browse, prompt: str) -> str:
    """The prompt's text, or in brackets why it cannot be read."""
    try:
        return prompt_text(browse.row(prompt))
    except StoreDamaged as error:
        return f"({error})"


def columns_of(browse: Browse, prompt: str) -> Row:
    """`row`: all columns but the prompt; `answer`: the reference answer, where a column of a usual name has one."""
    try:
        row = json.loads(browse.row(prompt) or "{}")
    except (StoreDamaged, ValueError):
        row = {}
    rest = {name: value for name, value in row.items() if name != "prompt"} if isinstance(row, dict) else {}
    try:
        return {"row": rest, "answer": reference(rest)}
    except RowUnsuitable:
        return {"row": rest, "answer": None}


def _responses(browse: Browse, prompt: str) -> tuple[list[Response], dict[SampleId, str]]:
    """All responses; damaged ones without tokens, and with the reason in the mapping."""
    try:
        return browse.responses(prompt), {}
    except StoreDamaged:
        pass
    none: Any = np.zeros(0, np.uint32)
    drops = browse.drops(prompt)
    responses, missing = [], {}
    for sample, record in browse.headers(prompt):
        tokens = none
        try:
            _, arrays = browse.samples(GetSamples(samples=[sample]))
            tokens = arrays[0]
        except StoreDamaged as error:
            missing[sample] = str(error)
        responses.append(Response(record.info(sample), record.state, drops.get(sample, ""), tokens, none))
    return responses, missing


def _row(response: Response) -> Row:
    info: SampleInfo = response.info
    drafted = response.drafted
    return {
        "id": str(info.id),
        "step": info.id.step,
        "index": info.id.index,
        "reward": info.reward,
        "parts": response.parts,
        "length": info.length,
        "finish_reason": info.finish_reason,
        "state": response.state,
        "reason": response.reason,
        "versions": info.versions,
        "drafted": None if drafted is None else int(drafted.sum()),
    }


def _previews(folder: RunFolder, responses: Sequence[Response]) -> dict[SampleId, str]:
    decode = folder.decode
    newest = sorted(responses, key=lambda response: -response.info.id.step)[:MOST_PREVIEWS]
    if decode is None:
        return {}
    texts = decode([response.tokens[:PREVIEW_TOKENS] for response in newest])
    return {response.info.id: text[:PREVIEW] for response, text in zip(newest, texts, strict=True)}


def _ids(arrays: Sequence[Any]) -> list[str]:
    return ["".join(f"{token} " for token in array.tolist()) for array in arrays]
