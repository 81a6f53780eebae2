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
from rhymed.history.responses.pieces import pieces_of_runs
from rhymed.history.responses.turns import Run, loose, made, runs_of
from rhymed.inputs.rows import prompt_text
from rhymed.messages import Call, GetSamples, SampleId, SampleInfo
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
    runs = [] if sample in missing else runs_of(response)
    parts = [] if sample in missing else _pieces(folder, response, runs)
    return {
        **_row(response),
        "epoch": epochs_of(response.info.id.step for response in responses)[sample.step],
        "prompt": text_of(folder.browse, sample.prompt),
        **columns_of(folder.browse, sample.prompt),
        "read": _read(folder, response),
        "pieces": parts,
        "runs": [_run(run) for run in runs],
        "loose": [_call(call) for call in loose(response)],
        **(tokens_of(folder, response) if by_token and sample not in missing else {}),
        "missing": missing.get(sample) or folder.missing,
    }


def _call(call: Call) -> Row:
    return {"name": call.name, "seconds": call.seconds, "error": call.error}


def _pieces(folder: RunFolder, response: Response, runs: Sequence[Run]) -> list[Row]:
    """`run`: to which of the runs a piece belongs, where there are any."""
    starts = [run.start for run in runs] or [0]
    found = pieces_of_runs(folder.decode or _ids, response.tokens, response.drafted, starts)
    return [
        piece._asdict() | ({"run": number} if runs else {})
        for number, own in enumerate(found)
        for piece in own
        if piece.text
    ]


def _read(folder: RunFolder, response: Response) -> str | None:
    """The prompt as the policy read it, with what its environment and its tools added. None: it is the row's, or
    has no text."""
    if not response.info.turns or folder.decode is None or not len(response.prompt_tokens):
        return None
    return folder.decode([response.prompt_tokens])[0]


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
        "session": _session(response) if info.turns else None,
    }


def _session(response: Response) -> Row:
    """Of a sample in turns."""
    info, calls = response.info, made(response)
    return {
        "turns": info.turn_count,
        "rows": len(info.forks) + 1,
        "calls": len(calls),
        "errors": sum(bool(call.error) for call in calls),
        "environment_tokens": info.length - info.learned,
        "earned": info.earned,
    }


def _run(run: Run) -> Row:
    return {
        "turn": run.turn,
        "environment": run.environment,
        "tokens": run.tokens,
        "calls": [_call(call) for call in run.calls],
        "fork": run.fork and {"row": run.fork.row, "shared": run.fork.shared},
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
