"""Which samples a report shows."""

from __future__ import annotations

import numpy as np

from rhymed.core.messages import EVAL
from rhymed.show.dashboard.saved import MOST, select
from rhymed_store.columns import SampleColumns


def columns_of(rows: list[tuple[int, int, int, float, bool]]) -> SampleColumns:
    """(prompt, step, length, reward, dropped), sorted."""
    prompt, step, length, reward, dropped = zip(*rows, strict=True) if rows else ((),) * 5
    return SampleColumns(
        prompt=np.array(prompt, np.uint64),
        step=np.array(step, np.int64),
        length=np.array(length, np.int64),
        reward=np.array(reward, np.float64),
        dropped=np.array(dropped, np.bool_),
        damaged=0,
    )


def test_the_most_telling_ones_follow_a_rule() -> None:
    nan = float("nan")
    columns = columns_of([
        (1, 0, 20, 0.5, False), (1, 0, 30, 0.5, False), (1, 4, 25, 1.0, False), (1, 4, 25, 0.8, False),
        (2, 1, 90, 0.9, False), (2, 5, 40, 0.1, False), (2, 5, 41, 0.3, False),
        (3, 2, 5, 0.0, False), (3, 2, 50, nan, True), (3, 6, 51, nan, True), (3, EVAL, 999, 9.0, False),
    ])  # fmt: skip
    found = select(columns, lambda pick: 0.75 if pick.row == 1 else 0.5)
    assert [(pick.row, pick.why.partition(",")[0]) for pick in found] == [
        (2, "the highest reward of the run"),
        (7, "the lowest reward of the run"),
        (4, "the longest response"),
        (5, "the mean reward of its prompt changed by -0.7 from first to last step"),
        (1, "75% accepted drafts"),
        (8, "the first of 2 that were generated and then dropped"),
        (9, "the last of 2 that were generated and then dropped"),
        (3, "among the highest rewards"),
        (6, "among the lowest rewards"),
        (0, "among the longest responses"),
    ]
    assert (found[3].prompt, found[3].step, found[3].nth) == (f"{2:016x}", 5, 0)
    assert len(found) == MOST


def test_of_nothing_nothing_is_told() -> None:
    assert select(columns_of([])) == []
    assert [pick.row for pick in select(columns_of([(1, 0, 0, float("nan"), False)]))] == [0]


def test_of_equals_one_of_another_prompt_is_told() -> None:
    columns = columns_of([
        (1, 0, 9, 1.0, False), (1, 0, 3, 0.0, False),
        (2, 1, 9, 0.0, False), (2, 1, 9, 1.0, False),
        (3, 2, 9, 0.5, False), (3, 2, 3, 0.5, False),
    ])  # fmt: skip
    assert [(pick.row, pick.why.partition(",")[0]) for pick in select(columns)][:4] == [
        (0, "the highest reward of the run"),
        (2, "the lowest reward of the run"),
        (4, "the longest response"),
        (1, "the shortest response"),
    ], "the last one's equals are of prompts that are told of, too: then the first"


def test_what_fills_the_ten_is_of_other_prompts_as_long_as_there_are_any() -> None:
    columns = columns_of(
        [(prompt, 0, 9, reward, False) for prompt in range(12) for reward in (0.1 * prompt, 2.0, 0.0)]
    )
    found = select(columns)
    assert len({pick.prompt for pick in found}) == len(found) == MOST
    few = select(columns_of([(prompt, step, 9, 1.0, False) for prompt in (1, 2) for step in range(9)]))
    assert len({pick.row for pick in few}) == MOST


def test_equals_of_one_prompt_are_told_one_after_the_other() -> None:
    columns = columns_of([(1, step, 9, 1.0, False) for step in range(3)])
    assert [pick.row for pick in select(columns)] == [0, 1, 2]


def test_changes_and_drops_that_are_equal_spread_over_prompts() -> None:
    rose = [(prompt, step, 9, reward, False) for prompt in range(1, 6) for step, reward in ((0, 0.0), (4, 0.5))]
    lost = [(prompt, 5, 7, float("nan"), True) for prompt in (6, 6, 7)]
    found = {pick.why: pick.row for pick in select(columns_of([*rose, *lost]), lambda pick: 0.5)}
    assert found["the highest reward of the run, 0.5"] == 1
    changed = found["the mean reward of its prompt changed by +0.5 from first to last step"]
    assert changed == 9, "of the one prompt that is new"
    assert found["the first of 3 that were generated and then dropped"] == 10
    assert found["the last of 3 that were generated and then dropped"] == 12
