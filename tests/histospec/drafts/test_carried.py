"""Carried tokens as drafts: by themselves, and with the drafter's tiny engine that follows scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rhymed.histospec.drafts.requests import PRIOR, Carried, CarriedDrafts
from rhymed.histospec.drafts.yields import Account
from tests.histospec.scripted_engine import Engine, words

WIDTH = 8  # of the engine's drafts


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(budget="fixed")
    yield made
    made.drafter.close()
    made.builder.close()


def account(engine: Engine, name: str = "a") -> Account:
    found = engine.drafter.account(name)
    assert found is not None
    return found


def altered(tokens: list[int], place: int) -> list[int]:
    return [*tokens[:place], (tokens[place] + 1) % 900, *tokens[place + 1 :]]


def test_carried_tokens_are_ahead_as_long_as_they_come_out_again() -> None:
    carried = Carried([1, 2, 3, 4, 5, 6])
    assert carried.ahead(4) == [1, 2, 3, 4]
    assert carried.follow([1], 1) == (1, False)
    assert carried.ahead(0) == []
    assert carried.ahead(9) == [2, 3, 4, 5, 6]
    assert carried.follow([], 1) == (0, False)
    assert carried.follow([2, 3, 9, 5], 5) == (2, True)
    assert carried.ahead(4) == []
    assert carried.follow([6], 6) == (0, False)
    assert (carried.kept, carried.ahead(4)) == (3, [])


def test_the_end_of_what_is_carried_is_no_difference() -> None:
    carried = Carried([1, 2])
    assert carried.follow([1, 2, 3], 3) == (2, False)
    assert carried.follow([4], 4) == (0, False)
    assert (carried.kept, carried.ahead(4)) == (2, [])


def test_a_response_that_is_reported_anew_is_compared_from_its_beginning() -> None:
    carried = Carried([1, 2, 3, 4])
    carried.follow([1, 2, 7], 3)
    assert carried.follow([1, 2, 3], 3) == (1, False)
    assert carried.ahead(4) == [4]
    assert carried.follow([1], 1) == (0, False)
    assert (carried.kept, carried.ahead(4)) == (1, [2, 3, 4])


def test_the_rate_starts_with_a_guess_and_follows_what_happens() -> None:
    carrying = CarriedDrafts(1000)
    assert carrying.rate == pytest.approx(PRIOR)
    tokens = words(0, 20)
    for _ in range(400):
        carrying.follow(Carried(tokens), tokens, 20)
    assert carrying.rate > 0.9999
    for _ in range(2000):
        carrying.follow(Carried(tokens), altered(tokens, 9), 20)
    assert carrying.rate == pytest.approx(0.9, abs=0.001)


@pytest.mark.parametrize("nothing", [None, [], (), np.zeros(0, np.int64)])
def test_nothing_carried_is_nothing(nothing: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert CarriedDrafts(1000).take("a", nothing).tokens == []
    assert not caplog.text


@pytest.mark.parametrize("given", [[5, 6], (5, 6), np.array([5, 6], np.uint32)])
def test_tokens_come_as_any_row_of_integers(given: Any) -> None:
    taken = CarriedDrafts(1000).take("a", given).tokens
    assert taken == [5, 6]
    assert {type(token) for token in taken} == {int}


@pytest.mark.parametrize("strange", [1000, -1, 2**40])
def test_from_a_token_of_another_vocabulary_on_nothing_is_carried(strange: int) -> None:
    assert CarriedDrafts(1000).take("a", [5, 999, strange, 7]).tokens == [5, 999]


@pytest.mark.parametrize(
    "given", ["5 6", b"56", {"a": 5}, {5, 6}, [5.0], ["5"], [[5]], [[5], [6, 7]], [2**70], [None], 5, object(), True]
)
def test_what_are_no_tokens_is_reported_once_and_left_out(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    carrying = CarriedDrafts(1000)
    assert carrying.take("a", given).tokens == []
    assert carrying.take("b", given).tokens == []
    assert caplog.text.count("its carried tokens are ignored") == 1


@pytest.mark.parametrize(
    "settings", [{"budget": "fixed"}, {"budget": "aimd"}, {"budget": "aimd", "matching": "paper"}]
)
def test_right_tokens_are_verified_by_the_width_of_a_draft(settings: dict[str, Any]) -> None:
    engine, script = Engine(**settings), words(0, 100)
    engine.add("a", script, carried=script)
    engine.finish()
    assert engine.ended == [("a", script)]
    assert engine.forwards == 1 + 99 // (WIDTH + 1)  # the first token comes without a draft
    reported = account(engine)
    assert (reported.carried, reported.kept) == (100, 100)
    assert reported == engine.drafter.total
    assert "100% of 100 carried tokens kept" in str(reported)
    assert {type(value) for value in vars(reported).values()} == {int, float}
    engine.drafter.close()
    engine.builder.close()


def test_the_budget_weighs_them_with_all_others() -> None:
    engine = Engine(budget="rate")
    scripts = {name: words(seed, 200) for seed, name in enumerate("abcd")}
    for name, script in scripts.items():
        engine.add(name, script, carried=script if name in "ab" else ())
    engine.finish()
    assert dict(engine.ended) == scripts
    assert account(engine, "a").forwards < 200  # whether more of it pays, the clock of this engine does not say
    assert account(engine, "c").forwards == 200
    engine.drafter.close()
    engine.builder.close()


@pytest.mark.parametrize("place", [0, 1, 40, 41, 99])
def test_behind_a_difference_the_carried_text_is_history(engine: Engine, place: int) -> None:
    script = words(1, 100)
    engine.add("a", script, carried=altered(script, place))
    engine.finish()
    assert engine.ended == [("a", script)]
    reported = account(engine)
    assert (reported.carried, reported.kept) == (100, place)
    assert reported.forwards < 20  # the text goes on alike


def test_a_text_of_its_own_behind_the_difference(engine: Engine) -> None:
    script = words(2, 40) + words(3, 60)
    engine.add("a", script, carried=words(2, 40) + words(4, 60))
    engine.finish()
    assert engine.ended == [("a", script)]
    assert account(engine).kept == 40
    assert account(engine).forwards > 60


def test_a_part_of_the_response_and_more_than_the_response(engine: Engine) -> None:
    script = words(5, 100)
    engine.add("part", script, carried=script[:50])
    engine.add("more", script[:60], prompt="q", carried=script)
    while engine.requests:
        engine.step()
        for name, info in engine.requests.items():
            assert len(engine.drafts[name]) < len(engine.scripts[name]) - len(info.response)
    assert dict(engine.ended) == {"part": script, "more": script[:60]}
    assert (account(engine, "part").carried, account(engine, "part").kept) == (50, 50)
    assert (account(engine, "more").carried, account(engine, "more").kept) == (100, 60)
    assert account(engine, "more").forwards <= 2 + 60 // WIDTH


@pytest.mark.parametrize("carried", [[], "abc", [5.5], [[1, 2]], [-1], [1000]])
def test_what_is_no_use_harms_nothing(engine: Engine, carried: Any) -> None:
    script = words(6)
    engine.add("a", script, carried=carried)
    engine.finish()
    assert engine.ended == [("a", script)]
    assert (account(engine).carried, account(engine).kept) == (0, 0)


def test_from_a_foreign_token_on_history_drafts(engine: Engine) -> None:
    script = words(7, 80)
    engine.remember(script)
    engine.add("a", script, carried=[*script[:30], 5000, *script[31:]])
    engine.finish()
    assert engine.ended == [("a", script)]
    assert (account(engine).carried, account(engine).kept) == (30, 30)
    assert account(engine).forwards < 20


def test_preempted_requests_go_on_with_what_they_carry(engine: Engine) -> None:
    script = words(8, 100)
    engine.add("a", script, carried=script)
    engine.add("b", words(9, 30))
    engine.step()
    engine.step()
    engine.waiting.add("a")
    for _ in range(5):
        engine.step()
    engine.waiting.clear()
    engine.finish()
    assert ("a", script) in engine.ended
    assert account(engine).kept == 100
    assert account(engine).forwards <= 2 + 99 // (WIDTH + 1)


def test_tokens_that_were_taken_back_come_again(engine: Engine) -> None:
    script = words(10, 100)
    engine.add("a", script, carried=altered(script, 70))
    for _ in range(4):
        engine.step()
    made = engine.requests["a"].response
    del made[-12:]  # type: ignore[attr-defined]
    engine.drafts.clear()
    engine.step()
    assert account(engine).kept == len(made)
    engine.finish()
    assert engine.ended == [("a", script)]
    assert account(engine).kept == 70
    assert engine.drafter.total.kept == 70


def test_history_that_arrives_leaves_them_alone(engine: Engine) -> None:
    script = words(11, 100)
    engine.add("a", script, carried=altered(script, 50))
    engine.add("b", words(12, 100))
    for _ in range(3):
        engine.step()
    engine.remember(words(13))
    engine.finish()
    assert ("a", script) in engine.ended
    assert account(engine).kept == 50
    assert account(engine).forwards < 20


def test_an_aborted_request_and_the_one_that_carries_its_tokens(engine: Engine) -> None:
    script = words(14, 100)
    engine.add("a", script)
    for _ in range(40):
        engine.step()
    partial = list(engine.requests.pop("a").response)
    engine.forwards = 0
    engine.add("again", script, carried=partial)
    engine.finish()
    assert ("again", script) in engine.ended
    assert account(engine, "again").kept == 40
    assert engine.forwards <= 60 + 1 + 40 // WIDTH


def test_a_mixed_batch(engine: Engine) -> None:
    scripts = {f"r{number}": words(number, 60) for number in range(12)}
    kinds: list[Callable[[list[int]], Any]] = [
        lambda script: script,
        lambda script: (),
        lambda script: altered(script, 30),
        lambda script: [*script[:20], -1],
    ]
    engine.remember(scripts["r1"], scripts["r5"])
    for number, (name, script) in enumerate(scripts.items()):
        engine.add(name, script, carried=kinds[number % 4](script))
    engine.finish()
    assert dict(engine.ended) == scripts
    assert [account(engine, f"r{number}").kept for number in range(4)] == [60, 0, 30, 20]
    total = Account()
    for name in scripts:
        total += account(engine, name)
    assert (total.carried, total.kept) == (3 * (60 + 60 + 20), 3 * (60 + 30 + 20))
    assert (engine.drafter.total.carried, engine.drafter.total.kept) == (total.carried, total.kept)
    assert engine.drafter.total.accepted == total.accepted


def test_the_calibration_learns_nothing_from_them(engine: Engine) -> None:
    script = words(15, 100)
    before = engine.drafter._calibration.table.copy()
    engine.add("a", script, carried=script)
    engine.finish()
    assert engine.drafter._calibration.table.tolist() == before.tolist()
    engine.remember(script)
    engine.add("b", script)
    engine.finish()
    assert engine.drafter._calibration.table.tolist() != before.tolist()


def test_the_papers_draft_length_neither_limits_nor_learns_from_them() -> None:
    engine, script = Engine(budget="aimd"), words(16, 100)
    engine.add("a", script, carried=altered(script, 45))
    drafted = []
    while engine.requests:
        engine.step()
        drafted.append(len(engine.drafts["a"]))
    assert engine.ended == [("a", script)]
    assert drafted[:8] == [8, 8, 8, 8, 8, 2, 4, 6]  # the sixth is the first one from history
    engine.drafter.close()
    engine.builder.close()
