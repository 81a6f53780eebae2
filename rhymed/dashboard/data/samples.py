"""What is told of one prompt and of one sample: rows, texts, and which of them was drafted.

Pure but for the store it is given. Without a tokenizer a response is its token ids, and `missing` says why. A sample
that is damaged at rest has no text, and says so; the others of its prompt have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from rhymed.errors import StoreDamaged, UnknownSample
from rhymed.history.folder import RunFolder, prompt_text
from rhymed.history.pieces import pieces
from rhymed.messages import GetSamples, SampleId, SampleInfo
from rhymed_store.inspect.browse import Browse, Response
from rhymed_store.inspect.epochs import epochs_of, title

PREVIEW = 300  # characters
PREVIEW_TOKENS = 400  # that are decoded for them
MOST_PREVIEWS = 512  # of one prompt, of its newest samples

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
        "text": asked(folder.browse, prompt),
        "epochs": [
            {"epoch": epochs[step], "name": title(epochs[step]), "step": step, "samples": by_step[step]}
            for step in epochs
        ],
        "missing": "; ".join([folder.missing] * bool(folder.missing) + sorted(set(missing.values()))),
    }


def sample_page(folder: RunFolder, sample: SampleId) -> Row:
    """Raises `UnknownSample`."""
    responses, missing = _responses(folder.browse, sample.prompt)
    found = next((response for response in responses if response.info.id == sample), None)
    if found is None:
        raise UnknownSample(f"the store has no sample {sample}")
    cut = [] if sample in missing else pieces(folder.decode or _ids, found.tokens, found.drafted)
    return {
        **_row(found),
        "epoch": epochs_of(response.info.id.step for response in responses)[sample.step],
        "prompt": asked(folder.browse, sample.prompt),
        "pieces": [piece._asdict() for piece in cut if piece.text],
        "missing": missing.get(sample) or folder.missing,
    }


def asked(browse: Browse, prompt: str) -> str:
    """What the prompt asks; where that cannot be told, why, in brackets."""
    try:
        return prompt_text(browse.row(prompt))
    except StoreDamaged as error:
        return f"({error})"


def _responses(browse: Browse, prompt: str) -> tuple[list[Response], dict[SampleId, str]]:
    """All of them; of those that are damaged no tokens, and why."""
    try:
        return browse.responses(prompt), {}
    except StoreDamaged:
        pass
    none: Any = np.zeros(0, np.uint32)
    drops = browse.drops(prompt)
    found, missing = [], {}
    for sample, record in browse.headers(prompt):
        tokens = none
        try:
            _, arrays = browse.samples(GetSamples(samples=[sample]))
            tokens = arrays[0]
        except StoreDamaged as error:
            missing[sample] = str(error)
        found.append(Response(record.info(sample), record.state, drops.get(sample, ""), tokens, none))
    return found, missing


def _row(response: Response) -> Row:
    info: SampleInfo = response.info
    drafted = response.drafted
    return {
        "id": str(info.id),
        "step": info.id.step,
        "index": info.id.index,
        "reward": info.reward,
        "length": info.length,
        "finish_reason": info.finish_reason,
        "state": response.state,
        "reason": response.reason,
        "versions": info.versions,
        "drafted": None if drafted is None else int(drafted.sum()),
    }


def _previews(folder: RunFolder, responses: Sequence[Response]) -> dict[SampleId, str]:
    """How the newest of them begin."""
    decode = folder.decode
    newest = sorted(responses, key=lambda response: -response.info.id.step)[:MOST_PREVIEWS]
    if decode is None:
        return {}
    texts = decode([response.tokens[:PREVIEW_TOKENS] for response in newest])
    return {response.info.id: text[:PREVIEW] for response, text in zip(newest, texts, strict=True)}


def _ids(arrays: Sequence[Any]) -> list[str]:
    """Instead of text."""
    return ["".join(f"{token} " for token in array.tolist()) for array in arrays]
