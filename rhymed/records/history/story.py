"""Facts about one sample in addition to its log lines, from the store; and those lines as sentences about it.

A user names a sample by its id, its first characters, or a part of its prompt's id; `find` completes it. Works on a
living run, and on a folder whose store or logs are gone: what cannot be read is reported and left out. Ids count
steps from 0, sentences from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rhymed.core.errors import ConfigError, DataError, RhymedError
from rhymed.core.messages import SampleId
from rhymed.core.steps import evaluation_step
from rhymed.core.text import call_text, counted, parts_text, readable, step_phrase
from rhymed.inputs.rows import prompt_text
from rhymed.records.history.folder import RunFolder, open_folder
from rhymed.records.history.responses import loose, titled, unanswered
from rhymed.records.history.responses import summary as summary_of
from rhymed.records.logs import Entry, entries, logs
from rhymed_store.browse import Response

WHOLE = re.compile(r"-?\d+/[0-9a-f]{16}/\d+")
GIVEN = re.compile(r"(?:(-?\d+)/)?([0-9a-f]{1,16})(?:/(\d+)?)?")
EVALUATION = re.compile(r"eval[- ]v(\d+)(?=/)")
SHOWN = 8  # samples listed when several match
PROMPT_CHARS = 70
SHORTEST = 4  # digits of a prompt's id, without a step before them
HINT = (
    f"write step/prompt/index, e.g. 3/ab12cd34ab12cd34/0, or its first characters, or {SHORTEST} digits of a prompt;"
    " steps in ids count from 0; ids are in the report, in the dashboard, and in `samples` of `rhymed logs --json`;"
    " an evaluation's begin eval-v3/"
)


def find(folder: Path, wanted: str, log_folders: Sequence[Path], *, future: bool = False) -> str:
    """The complete id. Raises `ConfigError` or `DataError` where no sample matches, or more than one does.
    `log_folders`: folders of logs. `future`: a complete id may also be that of a future sample."""
    wanted = EVALUATION.sub(lambda version: str(evaluation_step(int(version[1]))), wanted)
    wanted_id = GIVEN.fullmatch(wanted)
    if wanted_id is None or (wanted_id[1] is None and len(wanted_id[2]) < SHORTEST):
        raise ConfigError(f"--sample {wanted!r} is not a sample's id\n{HINT}")
    if future and WHOLE.fullmatch(wanted):
        return wanted
    found = _in_store(folder, wanted_id) or _in_logs(log_folders, wanted_id)
    if len(found) == 1:
        return str(found[0])
    if not found:
        raise DataError(f"--sample {wanted}: neither the store nor the logs in {folder} have such a sample\n{HINT}")
    some = readable(", ".join(map(str, found[:SHOWN]))) + (", …" if len(found) > SHOWN else "")
    raise DataError(f"--sample {wanted}: {len(found)} samples match; name one: {some}")


def _fits(id: SampleId, wanted_id: re.Match[str]) -> bool:
    step, prompt, index = wanted_id.groups()
    return (
        (step is None or id.step == int(step))
        and id.prompt.startswith(prompt)
        and (index is None or id.index == int(index))
    )


def _in_store(folder: Path, wanted_id: re.Match[str]) -> list[SampleId]:
    try:
        with open_folder(folder) as run:
            browse = run.browse
            prompts = [id for id in browse.ids() if id.startswith(wanted_id[2])]
            ids = {row.sample for prompt in prompts for row in browse.headers(prompt)}
            ids |= {id for prompt in prompts for id in browse.drops(prompt)}
    except RhymedError:
        return []
    return sorted(id for id in ids if _fits(id, wanted_id))


def _in_logs(log_folders: Sequence[Path], wanted_id: re.Match[str]) -> list[SampleId]:
    """For samples that are still in progress, and for a store that is gone."""
    found: set[SampleId] = set()
    for log in logs(*log_folders):
        for entry in entries(log, needle=wanted_id[2].encode()):
            names = [*entry.samples, *WHOLE.findall(entry.text)]
            found |= {parsed(name) for name in names if WHOLE.fullmatch(name)}
    return sorted(id for id in found if _fits(id, wanted_id))


def parsed(id: str) -> SampleId:
    step, prompt, index = id.split("/")
    return SampleId(int(step), prompt, int(index))


def summary(folder: Path, sample: str) -> list[str]:
    """The sample in the store, in a few lines."""
    id = parsed(sample)
    head = f"sample {readable(sample)}, of {step_phrase(id.step)}"
    try:
        with open_folder(folder) as run:
            return [head, *_kept(run, id)]
    except RhymedError as error:
        return [head, f"  the store cannot be read: {error}"]


def _kept(run: RunFolder, id: SampleId) -> Iterator[str]:
    text = " ".join(prompt_text(run.browse.row(id.prompt)).split())
    yield f"  prompt   {text[:PROMPT_CHARS]}{'…' if len(text) > PROMPT_CHARS else ''}"
    for response in run.browse.responses(id.prompt):
        if response.info.id == id:
            yield from _written(response)
            return
    if reason := run.browse.drops(id.prompt).get(id):
        yield f"  dropped  {reason}"
        return
    yield "  the store has no finished response of it"


def _written(response: Response) -> Iterator[str]:
    info = response.info
    reward = "no reward" if info.reward is None else f"reward {info.reward:g}"
    reward += f" ({parts_text(response.parts)})" if response.parts else ""
    versions = ", ".join(f"{count} of version {version}" for version, count in info.versions)
    yield f"  {response.state:<8} {reward}, {info.length} tokens ({info.finish_reason}): {versions}"
    if response.reason:
        yield f"  dropped  {response.reason}"
    if response.drafted is not None:
        yield f"  drafts   {int(response.drafted.sum())} of its tokens were accepted drafts"
    if info.turns:
        yield f"  turns    {summary_of(response)}"
        yield from (f"           {title}" for _, title in titled(response))
        if calls := [*unanswered(response), *loose(response)]:
            yield f"           calls: {'; '.join(map(call_text, calls))}"


def own(entry: Entry, sample: str) -> Entry:
    """An entry about several samples, reworded for this one."""
    if sample not in entry.samples:
        return entry
    place, others = entry.samples.index(sample), len(entry.samples) - 1
    together = f", with {counted(others, 'other')}" if others else ""
    of_step = "" if entry.step is None else f" in step {entry.step + 1}"

    def value(of: list[int] | list[float] | int | None) -> float:
        return of[place] if isinstance(of, list) and place < len(of) else float("nan")

    tokens, drafts = f"{value(entry.tokens):g} tokens", f"{value(entry.accepted):g} of them drafts"
    sentences = {
        "taken": f"takes it{together}",
        "stored": f"written and stored: {tokens}, {drafts}",
        "acting": f"takes it to be answered{together}",
        "scoring": f"takes it to be scored{together}",
        "scored": f"scored: {value(entry.rewards):g}",
        "trained": f"trained{of_step}{together}",
    }
    if entry.turns is not None:
        calls = entry.calls[place] if entry.calls and place < len(entry.calls) else []
        sentences |= _of_turn(int(entry.turns[place]), tokens, drafts, "; ".join(calls))
    return msgspec.structs.replace(entry, text=sentences.get(entry.event, entry.text))


def _of_turn(number: int, tokens: str, drafts: str, calls: str) -> dict[str, str]:
    """`number`: from 0; of a complete sample that of its turns."""
    after = f" after {calls}" if calls else ""
    return {
        "turned": f"turn {number + 1} written and stored: {tokens}, {drafts}",
        "answered": f"turn {number} answered: {tokens}{after}" if number else f"its prompt written: {tokens}",
        "stored": f"complete: {tokens} in {counted(number, 'turn')}",
        "rebuilt": f"its environment is made again: {counted(number, 'turn')} repeated",
    }
