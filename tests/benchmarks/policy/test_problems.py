"""Problems and worked solutions: the arithmetic is right, however it is put into words."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from benchmarks.policy.problems import LETTERS, LONGEST, Problem, problem, solution
from rhymed_workers.reward.scorers.answer import last_number

EQUATION = re.compile(r"(\d+(?: \+ \d+)+)(?: = | is | makes | gives )(\d+)(,? no, |, wait, |\? no, )?(\d*)")


def drawn(count: int, seed: int = 0) -> list[tuple[Problem, str]]:
    rng = random.Random(seed)
    problems = [problem(rng) for _ in range(count)]
    return [(each, solution(each, rng)) for each in problems]


def test_an_answer_is_the_last_two_digits_of_the_sum() -> None:
    for each, _ in drawn(300):
        assert each.answer == f"{each.start + each.times * each.term:02}"[-2:]
    assert Problem(37, 85, 4).prompt == "37, d x 85 =\n"


def test_every_solution_ends_right_as_the_scorer_reads_it() -> None:
    assert all(last_number(text) == each.answer for each, text in drawn(1000))


def test_what_stands_behind_an_equals_sign_is_right_or_put_right_at_once() -> None:
    slips = 0
    for _, text in drawn(300):
        for terms, first, no, second in EQUATION.findall(text):
            right = sum(map(int, terms.split(" + ")))
            assert int(second if no else first) == right
            assert not no or int(first) != right
            slips += bool(no)
    assert slips > 50


def test_every_addition_is_counted_and_goes_on_where_the_last_one_ended() -> None:
    for each, text in drawn(200):
        steps = re.findall(r"(?:Now|Next|Then|At|With) ([a-zA-Z]), [a-z]+ (\d\d) [a-z]+ (\d\d):", text)
        counted = range(each.times, 0, -1)
        assert steps == [
            (LETTERS[left - 1], f"{each.term:02}", f"{total:02}")
            for left, total in zip(counted, each.totals, strict=False)
        ]


def test_the_seed_decides_everything() -> None:
    assert drawn(50, seed=3) == drawn(50, seed=3)
    assert drawn(50, seed=3) != drawn(50, seed=4)


def test_the_same_problem_is_solved_in_many_words_but_by_the_same_numbers() -> None:
    rng = random.Random(0)
    each = problem(rng, 4)
    texts = [solution(each, rng) for _ in range(50)]
    assert len(set(texts)) == 50
    endings = Counter(text[-2:] for text in texts)
    assert endings == {each.answer: 50}


def test_sizes_have_a_long_tail_and_an_end() -> None:
    sizes = sorted(each.times for each, _ in drawn(2000))
    assert 3 <= sizes[1000] <= 6
    assert sizes[1980] > 20
    assert sizes[-1] <= LONGEST


@pytest.mark.parametrize("times", [1, LONGEST])
def test_a_problem_of_a_given_size(times: int) -> None:
    assert problem(random.Random(0), times).times == times
