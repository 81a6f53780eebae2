"""What a key does: it changes the `UiState`, and may have an effect for the terminal's owner. Pure.

Nothing is paused or drained before it was confirmed, and only `y` confirms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rhymed.core.messages import Drain, Pause
from rhymed.show.top import workers
from rhymed.show.top.state import Question, UiState
from rhymed.show.top.views import listing, sortable

Effect = Literal["quit", "ask"] | Pause | Drain | None
"""`ask`: the view has changed, so the broker is asked at once."""

LONGEST_FILTER = 40


def press(ui: UiState, key: str, letter: str | None, page: int) -> Effect:
    """`key` and `letter` (the printed character, if any) as Textual names them; `page`: visible rows."""
    if key in ("ctrl+c", "ctrl+q"):
        return "quit"
    if ui.question is not None:
        return _answer(ui, key)
    if ui.help_shown:
        ui.help_shown = False
        return None
    if ui.typing:
        return _type(ui, key, letter)
    ui.set_note("")
    if key in MOVES:
        _move(ui, MOVES[key](page))
        return None
    act = ACTIONS.get(letter or "") or ACTIONS.get(key)
    return act(ui) if act is not None else None


def click(ui: UiState, name: str) -> Effect:
    """Selects a row, or opens the selected one."""
    if ui.question is not None or ui.help_shown:
        return None
    if ui.selected.get(ui.view) == name:
        return _open(ui)
    ui.selected[ui.view] = name
    return None


def wheel(ui: UiState, rows: int) -> None:
    if ui.question is None and not ui.help_shown:
        _move(ui, rows)


MOVES: dict[str, Callable[[int], int]] = {
    "up": lambda page: -1, "k": lambda page: -1, "down": lambda page: 1, "j": lambda page: 1,
    "pageup": lambda page: -max(1, page), "pagedown": lambda page: max(1, page),
    "home": lambda page: -(1 << 30), "end": lambda page: 1 << 30,
}  # fmt: skip


def _move(ui: UiState, by: int) -> None:
    table = listing(ui)
    if table.rows:
        target = min(max(0, table.selected(ui) + by), len(table.rows) - 1)
        ui.selected[ui.view] = table.name(table.rows[target])


def _answer(ui: UiState, key: str) -> Effect:
    question, ui.question = ui.question, None
    if key in ("y", "Y") and question is not None:
        return question.order
    ui.set_note("nothing was done")
    return None


def _type(ui: UiState, key: str, letter: str | None) -> Effect:
    if key in ("enter", "escape"):
        ui.typing = False
        ui.filter = "" if key == "escape" else ui.filter
    elif key in ("backspace", "ctrl+h"):
        ui.filter = ui.filter[:-1]
    elif key in ("ctrl+u", "ctrl+w"):
        ui.filter = ""
    elif letter and letter.isprintable() and len(ui.filter) < LONGEST_FILTER:
        ui.filter += letter
    return None


def _quit(ui: UiState) -> Effect:
    return "quit"


def _help(ui: UiState) -> Effect:
    ui.help_shown = True
    return None


def _filter(ui: UiState) -> Effect:
    ui.typing = True
    return None


def _sort(ui: UiState) -> Effect:
    titles = ["", *sortable(ui)]
    before, _ = ui.sorts.get(ui.view, ("", False))
    title = titles[(titles.index(before) + 1) % len(titles)] if before in titles else ""
    ui.sorts[ui.view] = (title, False)
    return None


def _reverse(ui: UiState) -> Effect:
    title, reverse = ui.sorts.get(ui.view, ("", False))
    ui.sorts[ui.view] = (title or sortable(ui)[0], not reverse)
    return None


def _groups(ui: UiState) -> Effect:
    if ui.view in ("workers", "groups"):
        ui.view, ui.back_stack, ui.filter = "groups" if ui.view == "workers" else "workers", [], ""
    return None


def _open(ui: UiState) -> Effect:
    table = listing(ui)
    if not table.rows:
        return None
    row = table.rows[table.selected(ui)]
    ui.selected[ui.view] = table.name(row)
    ui.filter = ""
    match ui.view:
        case "workers":
            ui.worker = row.row.worker
            ui.enter("worker")
        case "groups":
            _open_group(ui, row.step, row.row.prompt, "")
        case "worker":
            _open_group(ui, row.item.id.step, row.item.id.prompt, str(row.item.id.index))
        case "group":
            return None
    return "ask"


def _open_group(ui: UiState, step: int, prompt: str, index: str) -> None:
    ui.prompt, ui.group, ui.step_done = (step, prompt), None, False
    ui.enter("group")
    ui.selected["group"] = index


def _back(ui: UiState) -> Effect:
    """Clears the filter, or leaves the view."""
    if ui.filter:
        ui.filter = ""
        return None
    ui.back()
    return "ask"


def _pause(ui: UiState) -> Effect:
    queues = ui.queues
    if queues is None or ui.connection.state != "live":
        ui.set_note("the broker does not answer: no order can be sent", is_error=True)
        return None
    held = sum(row.held for row in queues.workers if row.role != "trainer")
    text: tuple[str, ...]
    if queues.paused:
        text = ("Resume the run?", "Work is assigned again.")
    else:
        text = (
            "Pause the run?",
            f"The {held} samples that workers hold are finished;",
            "nothing new is started or trained.",
        )
    ui.question = Question(text, Pause(paused=not queues.paused))
    return None


def _drain(ui: UiState) -> Effect:
    queues = ui.queues
    if queues is None or ui.connection.state != "live":
        ui.set_note("the broker does not answer: no order can be sent", is_error=True)
        return None
    text: tuple[str, ...]
    if (row := workers.find(queues.workers, _chosen(ui))) is None:
        ui.set_note("no worker is selected", is_error=True)
    elif row.role == "trainer":
        ui.set_note("the trainer cannot be drained: p pauses the run", is_error=True)
    elif row.drained:
        text = (f"Assign work to {row.worker} again?",)
        ui.question = Question(text, Drain(worker=row.worker, drained=False))
    else:
        fate = "moved to others" if row.role == "rollout" else "finished"
        text = (f"Drain {row.worker}?", f"Its {row.held} samples are {fate}; it gets no new ones.")
        ui.question = Question(text, Drain(worker=row.worker, drained=True))
    return None


def _chosen(ui: UiState) -> str:
    """The worker that the key applies to."""
    if ui.view == "worker":
        return ui.worker
    table = listing(ui)
    if ui.view == "workers" and table.rows:
        return table.name(table.rows[table.selected(ui)])
    return ""


ACTIONS: dict[str, Callable[[UiState], Effect]] = {
    "q": _quit, "?": _help, "h": _help, "/": _filter, "s": _sort, "r": _reverse, "S": _reverse, "g": _groups,
    "tab": _groups, "enter": _open, "right": _open, "escape": _back, "left": _back, "backspace": _back,
    "p": _pause, "d": _drain,
}  # fmt: skip
