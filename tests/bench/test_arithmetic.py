"""Problems and worked solutions: the arithmetic is right, however it is put into words."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from rhymed.bench.arithmetic import LONGEST, Problem, problem, solution
from rhymed_workers.answer import last_number

EQUATION = re.compile(r"(\d+(?: \+ \d+)+)(?: = | is | makes | gives )(\d+)(,? no, |, wait, |\? no, )?(\d*)")


def drawn(count: int, seed: int = 0) -> list[tuple[Problem, str]]:
    rng = random.Random(seed)
    problems = [problem(rng) for _ in range(count)]
    return [(each, solution(each, rng)) for each in problems]


def test_an_answer_is_the_last_two_digits_of_the_chain() -> None:
    for each, _ in drawn(300):
        assert each.answer == f"{(each.start + sum(each.terms)) % 100:02}"
    assert Problem(37, (85, 4), first=25).prompt == "37 z85 A04 =\n"


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


def test_every_term_is_worked_on_in_order() -> None:
    for each, text in drawn(200):
        steps = re.findall(r"(?:Now|Next|Then|Take|With) ([a-zA-Z]\d\d)", text)
        assert steps == each.prompt.split()[1:-1] == each.labelled


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
    sizes = sorted(len(each.terms) for each, _ in drawn(2000))
    assert 3 <= sizes[1000] <= 6
    assert sizes[1980] > 20
    assert sizes[-1] <= LONGEST


@pytest.mark.parametrize("terms", [1, LONGEST])
def test_a_problem_of_a_given_size(terms: int) -> None:
    assert len(problem(random.Random(0), terms).terms) == terms
