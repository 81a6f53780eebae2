"""Which functions of lists process one sample at a time, as their source shows."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from rhymed_workers.reward.scorers.pointwise import is_pointwise

Define = Callable[[str], Callable[..., Any]]

HEAD = """
import helpers
import re
import sys
from builtins import eval as read

SEEN = set()
WORDS = ("a", "b")
SHIFTS = {"a": 1.0}
remember = SEEN.add
length = len

def score(text, other=""):
    return float(len(text) + len(other))

class State:
    global_step = 3

"""


@pytest.fixture
def define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Define:
    (tmp_path / "helpers.py").write_text("def of(text): return float(len(text))\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str) -> Callable[..., Any]:
        """`source`: a body of a function with TRL's parameters, or a whole module that defines `reward`."""
        source = dedent(source).strip()
        if "def reward" not in source:
            source = "def reward(completions, answer, trainer_state, **columns):\n" + indent(source, "    ")
        file = tmp_path / "mine.py"
        file.write_text(f"{HEAD}\n{source}\n")
        spec = importlib.util.spec_from_file_location("mine", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        reward: Callable[..., Any] = module.reward
        return reward

    return make


def loop(*lines: str) -> str:
    return "\n".join(
        ["found = []", "for i, c in enumerate(completions):", *(f"    {line}" for line in lines), "return found"]
    )


LOOP = """
found = []
for place, completion in enumerate(completions):
    try:
        value = float(completion)
        if value > 3:
            found.append(1.0)
            continue
        found.append(float(value == float(answer[place])))
    except ValueError as error:
        found.append(float(len(str(error)) > 1000))
return found
"""


@pytest.mark.parametrize(
    "source",
    [
        "return [float(c == a) for c, a in zip(completions, answer, strict=True)]",
        LOOP,
        """
        mark = "x"
        texts = [c.strip() for c in completions]
        return [float(t.count(mark) + length(o)) for t, o in zip(texts, columns["other"])]
        """,
        "return [float(trainer_state.global_step > 1) for _ in completions]",
        "return [score(c, other=a) + helpers.of(c) for c, a in zip(completions, answer)]",
        "digits = re.compile('[0-9]+')\nreturn [float(len(digits.findall(c))) for c in completions]",
        "return [sum(w in c for w in WORDS) + max((len(w) for w in c.split()), default=0) for c in completions]",
        "return [float(''.join(x for x in c if x != ' ') == answer[i]) for i, c in enumerate(completions)]",
        "return [float(len(completions[i])) for i in range(len(completions))]",
        "completions = [c.split() for c in completions]\nreturn [float(len(c)) for c in completions]",
        """
        rewards = []
        for completion in completions:
            total, seen = 0.0, {}
            for word in completion.split():
                if word in seen:
                    continue
                seen[word] = True
                total += 1.0
            if total > 1:
                kind = "many"
            else:
                kind = "few"
            rewards.append(total + len(kind))
        return rewards
        """,
        "async def reward(completions, **columns):\n    return [score(c) for c in completions]",
    ],
)
def test_these_look_at_one_sample_at_a_time(define: Define, source: str) -> None:
    function = define(source)
    assert is_pointwise(function, {"trainer_state"})
    if inspect.iscoroutinefunction(function):
        return
    texts, answers = ["4", "a b a", "2.5", "x"], ["4", "a", "2.5", "y"]
    given = dict(zip(inspect.signature(function).parameters, (texts, answers), strict=False))
    state = type("State", (), {"global_step": 3})
    alone = [
        function(**{name: [each[place]] for name, each in given.items()}, trainer_state=state, other=[str(place)])[0]
        for place in range(len(texts))
    ]
    assert function(**given, trainer_state=state, other=[str(place) for place in range(len(texts))]) == alone


@pytest.mark.parametrize(
    "source",
    [
        "most = max(len(c) for c in completions)\nreturn [len(c) / most for c in completions]",
        "return [1.0 / completions.count(c) for c in completions]",
        "found = []\nreturn found if answer else [float(c == a) for c, a in zip(completions, answer)]",
        "found = [float(len(c)) for c in completions]\ncolumns['log_metric']('sum', sum(found))\nreturn found",
        "seen = set()\n" + loop("found.append(float(c in seen))", "seen.add(c)"),
        "return [SEEN.add(c) or float(len(c)) for c in completions]",
        "return [remember(c) or float(len(c)) for c in completions]",
        "return [SHIFTS.setdefault(c, len(SHIFTS)) for c in completions]",
        "last = None\n" + loop("found.append(float(c == last))", "last = c"),
        loop("if c:", "    v = 1.0", "found.append(v)"),
        loop("if c:", "    break", "found.append(1.0)"),
        "return [float(place) for place, _ in enumerate(completions)]",
        "return [float(len(columns)) for _ in completions]",
        "return [float(len(c)) for c in completions if c]",
        "completions = 'ab'\nreturn [float(len(c)) for c in completions]",
        # names of the source that are not in the source
        "return [float(len(eval('completions'))) for _ in completions]",
        "return [float(len(read('completions'))) for _ in completions]",
        "return [float(len(locals())) for _ in completions]",
        "return [float(len(vars())) for _ in completions]",
        "return [float(len(__builtins__['vars']())) for _ in completions]",
        "return [float(len(sys._getframe().f_back.f_locals)) for _ in completions]",
        "return [float(len(getattr(score, '__globals__')['SEEN'])) for _ in completions]",
        "return [float(len(score.__globals__['SEEN'])) for _ in completions]",
        # values that a name gets elsewhere, or later
        "return [(lambda n=len(completions): float(n))() for _ in completions]",
        "return [(lambda: float(len(completions)))() for _ in completions]",
        "return [float((n := len(completions)) > 1) for _ in completions]",
        loop("v = len(c)", "found.append(v for _ in c)"),
        loop("v = len(c)", "one = (v for _ in c)", "found.append(one)"),
        loop("i = 0", "found.append(float(completions[i] == c))"),
        "return [float(sum(completions[i] == c for i in (0, 0))) for i, c in enumerate(completions)]",
        loop("try:", "    v = float(c)", "finally:", "    found.append(v)"),
        loop("try:", "    v = 1.0", "except len(completions):", "    v = 2.0", "found.append(v)"),
        "some = []\nfor c in completions:\n    if c:\n        some.append(len(c))\n"
        "return [float(s == len(c)) for s, c in zip(some, completions)]",
        # parameters that are no lists of samples, and names that are not what they seem
        "def reward(completions, weights=(1.0, 0.5), **columns):\n"
        "    return [w * len(c) for c, w in zip(completions, weights)]",
        "def reward(completions, seen=set()):\n    return [seen.add(c) or float(len(seen)) for c in completions]",
        "def reward(completions, len=len, **columns):\n    return [float(len(c)) for c in completions]",
        "def reward(completions, *others):\n    return [float(len(others)) for c in completions]",
        "def zip(*lists):\n    yield from ((max(lists[0]), one) for one in lists[1])\n\n"
        "def reward(completions, answer):\n    return [float(c == a) for c, a in zip(completions, answer)]",
        "class re:\n    compile = SEEN.add\n\ndef reward(completions):\n    p = re.compile('a')\n"
        "    return [float(p is None) for c in completions]",
        "def decorated(function): return lambda **given: [1.0 / len(given)]\n\n"
        "@decorated\ndef reward(completions, **columns):\n    return [1.0 for c in completions]",
    ],
)
def test_what_is_not_understood_may_compare(define: Define, source: str) -> None:
    assert not is_pointwise(define(source), {"trainer_state"})


@pytest.mark.parametrize("function", [len, object(), inspect.getsource])
def test_what_has_no_source_or_is_no_function_of_lists_may_compare(function: Any) -> None:
    assert not is_pointwise(function)
