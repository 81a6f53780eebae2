"""`rhymed history show PROMPT`: one prompt's responses side by side, one column per epoch.

Pure apart from reading the store: the results are tables. `prompts.py` lists the prompts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import DataError
from rhymed.core.printable import visible
from rhymed.core.style import plain_table
from rhymed.core.text import call_text, parts_text, response_name, step_phrase
from rhymed.inputs.rows import prompt_text
from rhymed.records.history.folder import RunFolder
from rhymed.records.history.responses import Piece, loose, pieces_of_runs, summary, titled, unanswered
from rhymed_store.browse import Browse, Response
from rhymed_store.columns import epochs_of, is_trained, title

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMN_WIDTH = 36  # characters below which a response is hard to read
MOST_COLUMNS = 3
DRAFTED = "dim"  # style of accepted drafts, so that sampled tokens stand out
GIVEN = "cyan"  # of what an environment wrote
TITLE = "bold cyan"  # of a line before each run of a response in turns
TOKEN_IDS = 40  # shown of a response without a tokenizer


def find(browse: Browse, wanted: str) -> list[str]:
    """Prompts by id, by its first four or more digits, else by consecutive words of their text."""
    ids = browse.ids()
    if re.fullmatch(r"[0-9a-f]{4,16}", wanted) and (found := [id for id in ids if id.startswith(wanted)]):
        return found
    words = " ".join(wanted.split()).casefold()
    found = [prompt for prompt in ids if words in " ".join(prompt_text(browse.row(prompt)).split()).casefold()]
    if not found:
        raise DataError(
            f"no prompt whose id begins with, or whose text has, {wanted!r} among {len(ids)} with samples;"
            " `rhymed history show` lists them"
        )
    return found


def by_epoch(responses: Iterable[Response]) -> dict[int, list[Response]]:
    """Of one prompt, oldest first."""
    responses = list(responses)
    numbers = epochs_of(response.info.id.step for response in responses)
    epochs: dict[int, list[Response]] = defaultdict(list)
    for response in responses:
        epochs[numbers[response.info.id.step]].append(response)
    return epochs


def columns(folder: RunFolder, prompt: str, epochs: list[int] | None, width: int) -> dict[int, list[Response]]:
    """Epoch -> responses, oldest first: the requested epochs, else the last that fit, training epochs preferred."""
    found = by_epoch(folder.browse.responses(prompt))
    if epochs is None:
        best = [epoch for epoch in found if is_trained(epoch)] or list(found)
        epochs = sorted(best)[-max(1, min(MOST_COLUMNS, width // COLUMN_WIDTH)) :]
    for epoch in epochs:
        if epoch not in found:
            raise DataError(f"prompt {prompt} has no {title(epoch)}; it has {', '.join(map(title, sorted(found)))}")
    return {epoch: found[epoch] for epoch in epochs}


def render(folder: RunFolder, prompt: str, shown: dict[int, list[Response]], limit: int) -> RenderableType:
    """`limit`: responses per epoch."""
    from rich.console import Group
    from rich.text import Text

    row = folder.browse.row(prompt)
    parts: list[Any] = [f"prompt {prompt}", Text(visible(prompt_text(row)))]
    rest = {name: value for name, value in json.loads(row or "{}").items() if name != "prompt"}
    if rest:
        parts.append(Text("row: " + visible(json.dumps(rest, ensure_ascii=False)), style="dim"))
    has_masks = any(response.drafted is not None for responses in shown.values() for response in responses[:limit])
    legend = [Text("dim: accepted drafts", style=DRAFTED)] if has_masks and folder.decode is not None else []
    return Group(*parts, "", _side_by_side(folder, shown, limit), *legend)


def _side_by_side(folder: RunFolder, shown: dict[int, list[Response]], limit: int) -> RenderableType:
    table = plain_table(expand=True)
    for epoch, responses in shown.items():
        rewards = [response.info.reward for response in responses if response.info.reward is not None]
        reward = f", reward {fmean(rewards):.3f}" if rewards else ""
        table.add_column(f"{title(epoch)} ({step_phrase(responses[0].info.id.step)}){reward}", ratio=1)
    most = max(len(responses) for responses in shown.values())
    for line in range(min(limit, most)):
        table.add_row(*(_cell(folder, column[line]) if line < len(column) else "" for column in shown.values()))
        table.add_row()
    if most > limit:
        table.caption = f"{most - limit} more per epoch: --limit {most}"
        table.caption_justify = "left"
    return table


def _cell(folder: RunFolder, response: Response) -> Any:
    from rich.text import Text

    info = response.info
    reward = "unscored" if info.reward is None else f"reward {info.reward:g}"
    reward += f" ({visible(parts_text(response.parts))})" if response.parts else ""
    cut = "" if info.finish_reason == "stop" else f", {info.finish_reason}"
    dropped = f", dropped: {response.reason or 'no reason kept'}" if response.state == "dropped" else ""
    drafted = response.drafted
    share = f", {drafted.sum() / max(1, info.learned):.0%} drafted" if drafted is not None and len(drafted) else ""
    turns = f", {summary(response)}" if info.turns else ""
    head = f"{response_name(info.id.index)}  {reward}, {info.length} tokens{share}{turns}{cut}{dropped}\n"
    return Text.assemble((head, "bold"), *_body(folder, response))


def _body(folder: RunFolder, response: Response) -> Iterator[tuple[str, str]]:
    """(text, style): of a response in turns each run, and above it a line that says what it is."""
    runs = list(titled(response))
    if folder.decode is None:
        found = [[Piece(text, None)] for text in _ids(response, [run.start for run, _ in runs] or [0])]
    else:
        starts = [run.start for run, _ in runs] or [0]
        found = pieces_of_runs(folder.decode, response.tokens, response.drafted, starts)
    for place, own in enumerate(found):
        given = bool(runs) and runs[place][0].environment
        if runs:
            yield f"{'' if place == 0 else chr(10)}[{visible(runs[place][1])}]\n", TITLE
        yield from ((visible(text), GIVEN if given else DRAFTED if draft else "") for text, draft in own)
    if calls := [*unanswered(response), *loose(response)]:
        yield f"\n[calls: {visible('; '.join(map(call_text, calls)))}]", TITLE


def _ids(response: Response, starts: Sequence[int]) -> list[str]:
    """The first tokens of each part."""
    ends = [*starts[1:], len(response.tokens)]
    parts = [response.tokens[start:end] for start, end in zip(starts, ends, strict=True)]
    return [
        " ".join(map(str, part[:TOKEN_IDS].tolist())) + (" ..." if len(part) > TOKEN_IDS else "") for part in parts
    ]
