"""Makes a history that fails shorter: by parts of its actions, then by the numbers of each. Pure.

hypothesis' own shrinker gives up after 200 attempts without progress, which leaves actions that have no part in the
fault. Every list of actions is a history that can be played, so parts can simply be left out (Zeller's ddmin).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.hostile.protocol.actions import Action, History


def shrink(history: History, fails: Callable[[History], bool], goes_on: Callable[[], bool]) -> History:
    """The shortest one found until `goes_on` says no, or until nothing can be left out or made zero."""
    history = _shorter(history, fails, goes_on)
    for name in ("staleness", "run_ahead", "evaluates", "filters", "turns"):
        plainer = history._replace(**{name: type(getattr(history, name))()})
        if getattr(history, name) and goes_on() and fails(plainer):
            history = plainer
    for number in reversed(range(len(history.actions))):
        for action in _simpler(history.actions[number]):
            if not goes_on():
                return history
            tried = _with(history, [*history.actions[:number], action, *history.actions[number + 1 :]])
            if fails(tried):
                history = tried
                break
    return history


def _shorter(history: History, fails: Callable[[History], bool], goes_on: Callable[[], bool]) -> History:
    size = len(history.actions) // 2
    while size:
        end, before = len(history.actions), history
        while end > 0 and goes_on():  # from the end: what follows the fault goes at once
            actions = history.actions
            tried = _with(history, [*actions[: max(0, end - size)], *actions[end:]])
            if tried.actions and fails(tried):
                history = tried
            end -= size
        if not goes_on():
            break
        size = size if size == 1 and history is not before else size // 2
    return history


def _simpler(action: Action) -> Iterator[Action]:
    """With as many zeros as possible first; then with smaller messages of the same verb."""
    yield Action(action.verb)
    yield Action(action.verb, kind=action.kind)
    for number, value in enumerate(action[1:], 1):
        if value:
            yield Action(*action[:number], 0, *action[number + 1 :])


def _with(history: History, actions: list[Action]) -> History:
    return history._replace(actions=actions)
