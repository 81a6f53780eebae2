"""Histories as data: a list of actions, each a verb and small numbers. Pure.

A number picks from what there is when the action is played (modulo), so every list of actions can be played, also one
from which a part was removed. That is what makes a failing history shrink.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

KEPT = Path(__file__).with_name("histories.jsonl")
"""Histories that failed once. `test_protocol.py` plays each of them."""
SCENES = 12  # of up to 10 actions

VERBS = {
    # honest peers, one message at a time
    "advance": 8,  # all honest peers do what they were asked
    "store": 6,  # a rollout worker writes a sample to the store, and does not report it yet
    "save": 5,  # … writes the first tokens of one, so that another worker could continue it
    "park": 2,  # … has written samples to the end with weights that are too old for them
    "report": 6,  # … reports what it has stored, or a reward worker its scores
    "score": 5,  # a reward worker writes a score to the store, and does not report it yet
    "again": 2,  # repeats its last report
    "give_back": 2,
    "load": 3,  # a rollout worker reports the weights that it was asked to load
    "train": 4,
    "checkpoint": 2,
    "vanish": 2,  # its connections end without a word
    "leave": 1,
    "join": 3,  # comes back under its name, with or without what it held
    "steer": 1,  # the operator pauses the run, or drains a worker
    "pass_time": 3,
    "restart_broker": 1,
    "restart_store": 1,
    # dishonest ones
    "foul": 24,  # any message, of any role
    "flood": 1,  # many of one kind
}
"""Verb -> how often, relative to others."""


class Action(NamedTuple):
    verb: str
    peer: int = 0
    kind: int = 0  # foul: of the message
    name: int = 0  # foul: in whose name; up to 8: its own
    which: int = 0  # sample
    how: int = 0  # number of samples, version, size …

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(map(str, self[1:]))})"


class History(NamedTuple):
    actions: list[Action]
    staleness: int = 0  # schedule.max_staleness
    why: str = ""  # kept: the fault that it showed
    run_ahead: int = 0  # schedule.run_ahead
    evaluates: bool = False  # every second version, on held-out prompts
    filters: bool = False  # dynamic sampling: groups without signal are replaced
    turns: bool = False  # samples have an environment: they are written in turns


_weighted = [verb for verb, weight in VERBS.items() for _ in range(weight)]
_small = st.integers(0, 63)
_kinds = st.one_of(st.integers(0, 19), st.integers(0, 49))  # a permitted message, or any one: `play.make`
_actions = st.builds(
    Action, st.sampled_from(_weighted), st.integers(0, 10), _kinds, st.integers(0, 23), _small, _small
)
_scenes = st.lists(_actions, min_size=1, max_size=10)  # lists of lists: most histories are long
histories = st.builds(
    lambda scenes, *settings: History([action for scene in scenes for action in scene])._replace(
        **dict(zip(("staleness", "run_ahead", "evaluates", "filters", "turns"), settings, strict=True))
    ),
    st.lists(_scenes, min_size=1, max_size=SCENES),
    st.integers(0, 1),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def read(path: Path = KEPT) -> list[History]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=History) for line in lines if line]


def keep(history: History, path: Path = KEPT) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(history) + b"\n")
