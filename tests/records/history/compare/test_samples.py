"""`rhymed history compare`: two runs have the same samples, or which ones differ, and from which token on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rhymed.core.messages import EVAL, SampleId, SampleInfo
from rhymed_store.client import NewSample
from tests.records.history.folders import APPLES, PEARS, two_epochs
from tests.records.history.sessions import ADD, GOT, PLAIN, RAISED, begin, complete
from tests.store.stores import LocalStore


def test_runs_of_the_same_samples(make_run: Callable[..., Path], rhymed) -> None:
    status, out, err = rhymed("compare", make_run("one"), make_run("two"))
    assert (status, err) == (0, "")
    assert out.startswith("one and two: 8 samples in both, 124 tokens\nall of these have the same tokens")


def test_a_difference_is_reported_with_its_place(make_run: Callable[..., Path], rhymed) -> None:
    changed = [
        (step, prompt, index, [*tokens[:4], 99, *tokens[5:]] if (step, index) == (2, 1) else tokens, reward)
        for step, prompt, index, tokens, reward in two_epochs()
    ]
    status, out, _ = rhymed("compare", make_run("one"), make_run("two", changed))
    assert status == 1
    assert "7 have the same tokens, 1 differ; the earliest:" in out
    assert f"2/{APPLES}/1: from token 5 on\n" in out


def test_samples_in_turns_are_compared_turn_by_turn(make_run: Callable[..., Path], rhymed) -> None:
    folders = [make_run(name, []) for name in ("one", "two")]
    for number, folder in enumerate(folders):
        local = LocalStore(folder / "store")
        own = [60 + number, 50, 51]
        for sample, parts in (
            (GOT, [([40, 41], [66], [ADD]), (own, [], [])]),  # the policy wrote otherwise
            (RAISED, [([40, 41], [66 + number], [ADD]), ([50], [], [])]),  # its environment answered otherwise
            (PLAIN, [([40, 41], [66], [ADD]), ([50], [], [])]),
        ):
            begin(local, sample, parts)
            complete(local, sample, parts, turns=[2, 2] if number and sample == PLAIN else None)
        local.database.close()
    status, out, _ = rhymed("compare", *folders)
    assert status == 1
    assert f"{GOT}: from token 4 on\n" in out
    assert f"{RAISED}: from token 3 on, which its environment wrote" in out
    assert "the same tokens in other turns: 1 sample" in out


def test_what_only_one_has_and_other_rewards_are_counted(make_run: Callable[..., Path], rhymed) -> None:
    samples = [(0, APPLES, 0, [5, 6], 1.0), (0, PEARS, 0, [7], 0.0)]
    less = [(0, APPLES, 0, [5, 6], 0.5), (-1, PEARS, 0, [7], None)]
    status, out, _ = rhymed("compare", make_run("one", samples), make_run("two", less), "--json")
    found = json.loads(out)
    assert status == 1
    assert (found["both"], found["rewards"], found["only_first"], found["only_second"]) == (1, 1, 1, 0)


def test_a_response_that_ends_earlier_differs_where_it_ends(make_run: Callable[..., Path], rhymed) -> None:
    long, short = ([(0, APPLES, 0, tokens, 1.0)] for tokens in ([5, 6, 7], [5, 6]))
    status, out, _ = rhymed("compare", make_run("one", long), make_run("two", short))
    assert status == 1
    assert out.count("from token 3 on\n") == 1


def test_the_earliest_difference_is_reported_first(make_run: Callable[..., Path], rhymed) -> None:
    ids = sorted((APPLES, PEARS))
    one, two = ([(7, ids[0], 0, [token, 5], 1.0), (1, ids[1], 0, [token, 5], 1.0)] for token in (40, 60))
    lines = rhymed("compare", make_run("one", one), make_run("two", two))[1].splitlines()
    assert [line.split("/")[0].strip() for line in lines[2:]] == ["1", "7"]


def test_evaluations_are_compared_too(make_run: Callable[..., Path], rhymed) -> None:
    one, two = ([(EVAL + 2, APPLES, 0, [token], 1.0)] for token in (5, 6))
    status, out, _ = rhymed("compare", make_run("one", one), make_run("two", two))
    assert (status, "1 differ" in out) == (1, True)
    assert f"eval-v2/{APPLES}/0: from token 1 on" in out


def test_nothing_is_the_same_as_itself_or_as_nothing(make_run: Callable[..., Path], rhymed) -> None:
    full, empty = make_run("one"), make_run("two", [(-1, APPLES, 0, [5], None)])
    status, _, err = rhymed("compare", full, full)
    assert (status, "are the same run" in err) == (2, True)
    status, out, _ = rhymed("compare", empty, make_run("three", [(-1, APPLES, 0, [5], None)]))
    assert (status, "nothing to compare" in out) == (1, True)


def test_another_prompt_is_another_question(make_run: Callable[..., Path], rhymed) -> None:
    """The same row, worded otherwise: equal answers say nothing."""
    folders = make_run("one", []), make_run("two", [])
    for folder, prompt in zip(folders, ([1, 2], [1, 3]), strict=True):
        local, id = LocalStore(folder / "store"), SampleId(0, APPLES, 0)
        info = SampleInfo(id=id, prompt_length=2, length=1, finish_reason="stop", versions=[(0, 1)])
        local.put(NewSample(info, np.array(prompt, np.uint32), np.array([5], np.uint32), np.zeros(1, np.float32)))
        local.database.close()
    status, out, _ = rhymed("compare", *folders)
    assert (status, "with different prompt tokens: 1 sample" in out) == (1, True)
