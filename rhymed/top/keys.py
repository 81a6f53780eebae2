"""What a key does: it changes the look, and may want something from who owns the terminal. Pure.

Nothing is paused or drained before it was confirmed, and only `y` confirms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rhymed.messages import Drain, Pause
from rhymed.top import workers
from rhymed.top.state import Look, Question
from rhymed.top.views import listing, sortable

Effect = Literal["quit", "ask"] | Pause | Drain | None
"""`ask`: something else is looked at, so the broker is to be asked now."""

LONGEST_FILTER = 40


def press(look: Look, key: str, letter: str | None, page: int) -> Effect:
    """`key` and `letter` (what it prints, if anything) as Textual calls them; `page`: rows in sight."""
    if key in ("ctrl+c", "ctrl+q"):
        return "quit"
    if look.question is not None:
        return _answer(look, key)
    if look.helping:
        look.helping = False
        return None
    if look.typing:
        return _type(look, key, letter)
    look.say("")
    if key in MOVES:
        _move(look, MOVES[key](page))
        return None
    act = ACTS.get(letter or "") or ACTS.get(key)
    return act(look) if act is not None else None


def click(look: Look, name: str) -> Effect:
    """On a row: it is selected; on the selected one: it is opened."""
    if look.question is not None or look.helping:
        return None
    if look.selected.get(look.view) == name:
        return _open(look)
    look.selected[look.view] = name
    return None


def wheel(look: Look, rows: int) -> None:
    if look.question is None and not look.helping:
        _move(look, rows)


MOVES: dict[str, Callable[[int], int]] = {
    "up": lambda page: -1, "k": lambda page: -1, "down": lambda page: 1, "j": lambda page: 1,
    "pageup": lambda page: -max(1, page), "pagedown": lambda page: max(1, page),
    "home": lambda page: -(1 << 30), "end": lambda page: 1 << 30,
}  # fmt: skip


def _move(look: Look, by: int) -> None:
    table = listing(look)
    if table.rows:
        target = min(max(0, table.selected(look) + by), len(table.rows) - 1)
        look.selected[look.view] = table.name(table.rows[target])


def _answer(look: Look, key: str) -> Effect:
    question, look.question = look.question, None
    if key in ("y", "Y") and question is not None:
        return question.order
    look.say("nothing was done")
    return None


def _type(look: Look, key: str, letter: str | None) -> Effect:
    if key in ("enter", "escape"):
        look.typing = False
        look.filter = "" if key == "escape" else look.filter
    elif key in ("backspace", "ctrl+h"):
        look.filter = look.filter[:-1]
    elif key in ("ctrl+u", "ctrl+w"):
        look.filter = ""
    elif letter and letter.isprintable() and len(look.filter) < LONGEST_FILTER:
        look.filter += letter
    return None


def _quit(look: Look) -> Effect:
    return "quit"


def _help(look: Look) -> Effect:
    look.helping = True
    return None


def _filter(look: Look) -> Effect:
    look.typing = True
    return None


def _sort(look: Look) -> Effect:
    """By the next column."""
    titles = ["", *sortable(look)]
    before, _ = look.sorts.get(look.view, ("", False))
    title = titles[(titles.index(before) + 1) % len(titles)] if before in titles else ""
    look.sorts[look.view] = (title, False)
    return None


def _reverse(look: Look) -> Effect:
    title, reverse = look.sorts.get(look.view, ("", False))
    look.sorts[look.view] = (title or sortable(look)[0], not reverse)
    return None


def _groups(look: Look) -> Effect:
    if look.view in ("workers", "groups"):
        look.view, look.trail, look.filter = "groups" if look.view == "workers" else "workers", [], ""
    return None


def _open(look: Look) -> Effect:
    """Look into what is selected."""
    table = listing(look)
    if not table.rows:
        return None
    row = table.rows[table.selected(look)]
    look.selected[look.view] = table.name(row)
    look.filter = ""
    match look.view:
        case "workers":
            look.worker = row.row.worker
            look.go("worker")
        case "groups":
            _into_group(look, row.step, row.row.prompt, "")
        case "worker":
            _into_group(look, row.item.id.step, row.item.id.prompt, str(row.item.id.index))
        case "group":
            return None
    return "ask"


def _into_group(look: Look, step: int, prompt: str, index: str) -> None:
    look.prompt, look.group, look.past = (step, prompt), None, False
    look.go("group")
    look.selected["group"] = index


def _back(look: Look) -> Effect:
    """Out of a filter, out of a view."""
    if look.filter:
        look.filter = ""
        return None
    look.back()
    return "ask"


def _pause(look: Look) -> Effect:
    queues = look.queues
    if queues is None or look.link.state != "live":
        look.say("the broker does not answer: nothing can be told to it", wrong=True)
        return None
    held = sum(row.held for row in queues.workers if row.role != "trainer")
    text: tuple[str, ...]
    if queues.paused:
        text = ("Let the run go on?", "Work is given out again.")
    else:
        text = (
            "Pause the run?",
            f"{held} samples that workers have are finished;",
            "nothing new is begun or trained.",
        )
    look.question = Question(text, Pause(paused=not queues.paused))
    return None


def _drain(look: Look) -> Effect:
    queues = look.queues
    if queues is None or look.link.state != "live":
        look.say("the broker does not answer: nothing can be told to it", wrong=True)
        return None
    text: tuple[str, ...]
    row = workers.find(queues.workers, _chosen(look))
    if row is None:
        look.say("no worker is selected", wrong=True)
    elif row.role == "trainer":
        look.say("the trainer cannot be drained: p pauses the run", wrong=True)
    elif row.drained:
        text = (f"Give {row.worker} work again?",)
        look.question = Question(text, Drain(worker=row.worker, drained=False))
    else:
        what = "handed to others" if row.role == "rollout" else "finished"
        text = (f"Drain {row.worker}?", f"Its {row.held} samples are {what}; it gets nothing new.")
        look.question = Question(text, Drain(worker=row.worker, drained=True))
    return None


def _chosen(look: Look) -> str:
    """The worker that a key means."""
    if look.view == "worker":
        return look.worker
    table = listing(look)
    if look.view == "workers" and table.rows:
        return table.name(table.rows[table.selected(look)])
    return ""


ACTS: dict[str, Callable[[Look], Effect]] = {
    "q": _quit, "?": _help, "h": _help, "/": _filter, "s": _sort, "r": _reverse, "S": _reverse, "g": _groups,
    "tab": _groups, "enter": _open, "right": _open, "escape": _back, "left": _back, "backspace": _back,
    "p": _pause, "d": _drain,
}  # fmt: skip
