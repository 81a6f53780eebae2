"""The drafter with a tiny engine that follows scripts: what it drafts, and how requests and history come and go."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rhymed.histospec.drafts.budget import Budget
from rhymed.histospec.drafts.requests import Continued, RequestInfo
from rhymed.histospec.drafts.yields import accepted
from rhymed.histospec.index import arena
from rhymed.histospec.index.builder import Builder, PastResponse
from rhymed.histospec.settings import Settings
from tests.histospec.scripted_engine import PROMPT, Engine, words


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(budget="fixed")
    yield made
    made.drafter.close()
    made.builder.close()


def test_history_that_repeats_is_drafted_and_accepted(engine: Engine) -> None:
    script = words(0)
    engine.remember(script)
    engine.add("a", script)
    engine.finish()
    assert engine.forwards < len(script) / 3
    account = engine.drafter.account("a")
    assert account is not None
    assert account.forwards == engine.forwards
    assert account.accepted == len(script) - account.forwards
    assert account.drafted >= account.accepted
    assert engine.drafter.total == account
    assert f"{len(script) / account.forwards:.2f} tokens per step and request" in str(account)
    assert str(account - account) == "nothing decoded"


def test_a_response_is_a_draft_for_other_prompts_once_it_has_ended(engine: Engine) -> None:
    script = words(0)
    engine.add("a", script, prompt="p")
    engine.finish()
    assert engine.forwards == len(script)
    engine.add("b", [*words(1, 10), *script], prompt="q")
    engine.finish()
    account = engine.drafter.account("b")
    assert account is not None
    assert account.accepted > 40


@pytest.mark.parametrize("settings", [{"matching": "paper"}, {"responses": 0}], ids=str)
def test_the_papers_matching_and_drafts_without_history_leave_other_prompts_out(settings: dict[str, object]) -> None:
    engine, script = Engine(budget="fixed", **settings), words(0)
    for prompt in "pq":
        engine.add(prompt, script, prompt=prompt)
        engine.finish()
    assert engine.forwards == 2 * len(script)
    engine.drafter.close()
    engine.builder.close()


def test_every_forward_tells_how_many_tokens_it_made(engine: Engine) -> None:
    """Also of a request that waits in between, and of one whose tokens were carried; told once."""
    script, other = words(0), words(1)
    engine.remember(script)
    engine.add("a", script)
    engine.add("b", other, carried=[*other[:20], 9, *other[21:]])
    engine.step()
    engine.waiting.add("a")
    engine.step()
    engine.waiting.clear()
    engine.finish()
    for name, length in (("a", len(script)), ("b", len(other))):
        account, yields = engine.drafter.account(name), engine.drafter.take_yields(name)
        assert account is not None
        assert yields is not None
        assert (len(yields), sum(yields)) == (account.forwards, length)
        assert accepted(yields, length).sum() == account.accepted > 20
        assert engine.drafter.take_yields(name) is None


def test_a_later_turn_drafts_after_what_came_before_and_tells_of_its_own_tokens(engine: Engine) -> None:
    script = words(4, 90)
    engine.remember(script)
    engine.add("a", script, prefix=40)
    engine.finish()
    account, yields = engine.drafter.account("a"), engine.drafter.take_yields("a")
    assert account is not None
    assert yields is not None
    assert (sum(yields), len(yields)) == (50, account.forwards)
    assert account.accepted == 50 - account.forwards > 30


def test_carried_tokens_of_a_later_turn_follow_its_prefix(engine: Engine) -> None:
    script = words(5, 90)
    engine.add("a", script, prefix=40, carried=script[40:80])
    engine.finish()
    account = engine.drafter.account("a")
    assert account is not None
    assert account.accepted > 30


def test_the_turns_of_a_sample_are_one_text(engine: Engine) -> None:
    """Not one for each turn, with what came before it: long samples would fill the memory, and crowd history out."""
    script, other = words(7, 400), words(8, 400)
    engine.remember(script)
    for end in range(40, 401, 40):
        for name, text in (("a", script), ("b", other)):
            engine.add(f"{name}{end}", text[:end], prefix=end - 20 if end > 40 else 0, sample=name)
        engine.finish()
    index = engine.drafter._requests._indexes.get("p")
    assert index is not None
    assert index.tokens == len(PROMPT) + 3 * 400
    account = engine.drafter.account("a")
    assert account is not None
    assert account.accepted > 10, "of the last turn"


def test_a_turn_that_continues_other_tokens_is_a_text_of_its_own(engine: Engine) -> None:
    script = words(9, 80)
    engine.add("first", script[:40], sample="a")
    engine.finish()
    engine.add("branch", [*script[:30], *words(10, 50)], prefix=45, sample="a")
    engine.finish()
    engine.add("again", [*script[:30], *words(10, 50)][:40], prefix=35, sample="a")
    engine.finish()
    index = engine.drafter._requests._indexes.get("p")
    assert index is not None
    assert index.tokens == len(PROMPT) + 40 + 80 + 40


def test_drafts_of_turns_end_with_the_token_that_ends_a_turn(engine: Engine) -> None:
    """What follows it in history is the answer of an environment."""
    script = words(6)
    engine.remember(script)
    engine.stops = np.array([script[20]], np.int32)
    engine.add("a", script[:40])
    drafts: list[list[int]] = []
    while engine.requests:
        engine.step()
        drafts += engine.drafts.values()
    ended = [draft for draft in drafts if script[20] in draft]
    assert ended
    assert all(draft.index(script[20]) == len(draft) - 1 for draft in ended)


def test_the_response_of_a_later_turn_is_copied_as_a_whole() -> None:
    """Not token by token: the engine waits while the text of an ended turn is copied for its siblings."""
    reads = 0

    class Counted(list[int]):
        def __iter__(self) -> Iterator[int]:
            nonlocal reads
            reads += 1
            return super().__iter__()

    written = [3, 4]
    response = Continued(Counted(range(50)), written)
    written.append(5)
    assert np.array(response, np.int32).tolist() == [*range(50), 3, 4, 5]
    assert reads < 5
    assert (response[49:51], response[-1], len(response)) == ([49, 3], 5, 53)


def test_a_second_request_of_a_sample_tells_of_itself_alone(engine: Engine) -> None:
    script = words(2)
    engine.add("first", script, prompt="p")
    for _ in range(5):
        engine.step()
    del engine.requests["first"]
    engine.requests["again"] = RequestInfo("first", "p", 0, PROMPT, [], script[:5])
    engine.scripts["again"] = script
    engine.finish()
    yields = engine.drafter.take_yields("first")
    assert yields is not None
    assert accepted(yields, len(script))[:6].tolist() == [False, *[True] * 4, False]
    assert sum(yields) == len(script)


def test_a_request_without_history_makes_every_token_by_itself(engine: Engine) -> None:
    engine.add("a", words(0))
    engine.finish()
    assert engine.forwards == 60


def test_steps_pass_where_nothing_is_worth_drafting_and_are_all_accounted_for() -> None:
    engine = Engine(budget="rate")
    scripts = {"a": words(0, 400), "b": words(1, 403)}
    for name, script in scripts.items():
        engine.add(name, script, prompt=name)
    engine.finish()
    assert engine.skipped > 250
    for name, script in scripts.items():
        account, yields = engine.drafter.account(name), engine.drafter.take_yields(name)
        assert account is not None
        assert yields is not None
        assert account.forwards + account.accepted == len(yields) + account.accepted == sum(yields) == len(script)
        index = engine.drafter._requests._indexes.get(name)
        assert index is not None
        assert index.tokens == len(PROMPT) + len(script)
    assert engine.drafter.total.timed_s > engine.drafter.total.plain_s > 0, "the difference is the drafter's own time"
    engine.drafter.close()
    engine.builder.close()
    assert engine.ended == [("a", scripts["a"]), ("b", scripts["b"])]


def test_drafts_that_begin_to_pay_end_the_skipping() -> None:
    """The second request repeats the first one, which nothing had prepared. Every draft pays here."""
    engine = Engine(budget="rate")
    budget = engine.drafter._budget

    def choose(survival: NDArray[np.float32], lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        budget.unprofitable = not lengths.any()
        return lengths

    budget.choose, budget.paused = choose, lambda steps: 0  # type: ignore[method-assign]
    script = words(2, 400)
    engine.add("first", script)
    engine.finish()
    before = engine.forwards
    engine.add("second", script)
    engine.finish()
    assert engine.skipped > 100
    assert engine.forwards - before < 150
    engine.drafter.close()
    engine.builder.close()


def test_a_question_about_a_request_in_between_loses_nothing() -> None:
    engine = Engine(budget="rate")
    script = words(3, 300)
    engine.add("a", script)
    for done in range(1, 300):
        engine.step()
        account = engine.drafter.account("a") if done % 7 == 0 else None
        assert account is None or account.forwards == done
    engine.finish()
    assert engine.skipped > 50
    yields = engine.drafter.take_yields("a")
    assert yields is not None
    assert sum(yields) == len(script)
    engine.drafter.close()
    engine.builder.close()


def test_steps_in_which_requests_come_and_go_are_timed_too(engine: Engine) -> None:
    """Not the first one, before which the engine may have been idle."""
    engine.add("a", words(0))
    engine.step()
    assert engine.drafter.total.timed_s == 0
    for number in range(1, 4):
        before = engine.drafter.total.timed_s
        engine.add(f"b{number}", words(number))
        engine.step()
        assert engine.drafter.total.timed_s > before
    engine.waiting = set(engine.requests)
    before = engine.drafter.total.timed_s
    engine.add("alone", words(9))
    engine.step()
    assert engine.drafter.total.timed_s == before


def test_an_account_holds_nothing_but_plain_numbers(engine: Engine) -> None:
    """It goes through vLLM's own messages, which refuse numpy's."""
    script = words(1)
    engine.remember(script)
    engine.add("a", script)
    engine.finish()
    account = engine.drafter.account("a")
    assert account is not None
    assert account.plain_s > 0
    for reported in (account, engine.drafter.total):
        assert {type(value) for value in vars(reported).values()} == {int, float}


def test_what_is_drafted_changes_no_token(engine: Engine) -> None:
    """Wrong history is verified and refused: the script comes out."""
    script = words(1)
    mixed = [token if place % 7 else 9 for place, token in enumerate(script)]
    engine.remember(mixed, words(2))
    engine.add("a", script)
    engine.finish()
    assert engine.ended == [("a", script)]


def test_siblings_draft_for_each_other(engine: Engine) -> None:
    script = words(3)
    engine.add("first", script)
    for _ in range(30):
        engine.step()
    engine.add("second", script)
    engine.finish()
    account = engine.drafter.account("second")
    assert account is not None
    assert account.accepted > 20  # then it has caught up


def test_prompts_do_not_draft_for_each_other(engine: Engine) -> None:
    script = words(4)
    engine.remember(script, prompt="other")
    engine.add("a", script)
    engine.finish()
    assert engine.forwards == len(script)


def test_history_may_come_while_requests_run(engine: Engine) -> None:
    script = words(5)
    engine.add("a", script)
    engine.add("b", script[:20] + words(6))
    for _ in range(10):
        engine.step()
    engine.remember(script)
    engine.finish()
    account = engine.drafter.account("a")
    assert account is not None
    assert account.forwards < 30
    assert sorted(name for name, _ in engine.ended) == ["a", "b"]


def test_a_preempted_request_keeps_its_place(engine: Engine) -> None:
    script = words(7)
    engine.remember(script)
    engine.add("a", script)
    engine.add("b", words(8))
    engine.step()
    engine.waiting.add("a")
    for _ in range(5):
        engine.step()
    assert not engine.ended
    engine.waiting.clear()
    engine.finish()
    assert ("a", script) in engine.ended


def test_tokens_that_the_engine_took_back_are_taken_back(engine: Engine) -> None:
    script = words(9)
    engine.remember(script)
    engine.add("a", script)
    for _ in range(3):
        engine.step()
    made = engine.requests["a"].response
    del made[-2:]  # type: ignore[attr-defined]
    engine.drafts.clear()
    engine.finish()
    assert engine.ended == [("a", script)]


def test_an_aborted_request_counts_as_ended(engine: Engine) -> None:
    engine.add("a", words(10))
    engine.add("b", words(11))
    engine.step()
    del engine.requests["a"]
    engine.finish()
    assert [name for name, _ in engine.ended] == ["a", "b"]


def test_every_prompt_is_seen_once_while_it_runs(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.add(name, words(12))
    engine.step()
    engine.add("c", words(13))
    engine.finish()
    engine.add("d", words(14))
    engine.finish()
    assert engine.seen == ["p", "p"]


def test_drafts_stop_at_the_limit(engine: Engine) -> None:
    script = words(15)
    engine.remember(script + words(16))
    engine.add("a", script)
    while engine.requests:
        engine.step()
        for name, drafted in engine.drafts.items():
            if name in engine.requests:
                assert len(drafted) < len(script) - len(engine.requests[name].response)


@pytest.mark.parametrize("settings", [{"budget": "aimd", "matching": "paper"}, {"budget": "rate"}, {}])
def test_every_rule_leaves_the_tokens_alone(settings: dict[str, object]) -> None:
    engine = Engine(**settings)
    scripts = {f"r{number}": words(20) if number % 2 else words(number) for number in range(12)}
    engine.remember(words(20), words(21))
    for name, script in scripts.items():
        engine.add(name, script)
    engine.finish()
    assert dict(engine.ended) == scripts
    engine.drafter.close()
    engine.builder.close()


def test_history_of_another_vocabulary_is_reported_and_left_out(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    script = words(22)
    engine.remember([5000, *script])
    engine.add("a", script)
    engine.finish()
    assert engine.forwards == len(script)
    assert "has no history: token id 5000" in caplog.text
    assert engine.builder.failed == 1


def test_a_history_that_cannot_be_read_is_reported_and_left_out(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> list[PastResponse]:
        raise OSError("no such disk")

    for _ in range(9):
        engine.builder.submit("p", PROMPT, broken)
    tried = threading.Event()
    engine.builder.run(tried.set)  # in turn: what still waits when it closes is not read
    engine.add("a", words(23))
    engine.finish()
    assert tried.wait(60)
    assert caplog.text.count("has no history: no such disk") == 5
    assert engine.builder.failed == 9


REHEARSAL = """
from rhymed.histospec import drafter
from rhymed.histospec.drafts import budget, calibration, voting
from rhymed.histospec.index import index
from tests.histospec import scripted_engine as told

drafter.warm_up(told.Settings())
modules = (budget, calibration, voting, index)
compiled = [one for module in modules for one in vars(module).values() if hasattr(one, "overloads")]
before = [len(one.overloads) for one in compiled]
engine = told.Engine()
for name in "abc":
    engine.add(name, told.words(1))
engine.remember(told.words(2), told.words(3))
engine.finish()
assert sum(before) and [len(one.overloads) for one in compiled] == before, before
engine.builder.close()
"""


def test_the_papers_matching_has_its_own_context_lengths() -> None:
    builder, brought = Builder(1000, Settings(matching="paper").orders), threading.Event()
    builder.submit("p", PROMPT, lambda: [PastResponse(np.array([1, 2, 3], np.int32), 0)])
    builder.run(brought.set)  # in turn
    assert brought.wait(60)
    ((_, index),) = builder.finished()
    builder.close()
    assert index.array[[arena.LONG, arena.SHORT]].tolist() == [7, 3]


def test_after_a_rehearsal_nothing_is_left_to_compile() -> None:
    """In a process of its own: here all is compiled long since."""
    subprocess.run([sys.executable, "-c", REHEARSAL], cwd=Path(__file__).parents[2], check=True)


@pytest.mark.parametrize("right", [False, True])
def test_drafts_teach_where_none_is_verified(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    """Else drafts that become right after a nearly random policy would never be tried."""
    promised: list[float] = []

    def nothing(budget: Budget, survival: NDArray[np.float32], lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        promised.extend(survival[lengths > 0, 0].tolist())
        return np.zeros_like(lengths)

    monkeypatch.setattr(Budget, "choose", nothing)
    engine = Engine()
    try:
        for round in range(40):
            script = words(round, 40)
            # Wrong: every second token is another one, so that there are places, but what follows is not what comes.
            history = script if right else [token if at % 2 else 999 - at for at, token in enumerate(script)]
            engine.remember(history, prompt=f"p{round}")
            engine.add(f"r{round}", script, prompt=f"p{round}")
            engine.finish()
        assert engine.forwards == 40 * 40
        assert np.mean(promised[-200:]) > 0.95 if right else np.mean(promised[-200:]) < 0.65
    finally:
        engine.drafter.close()
        engine.builder.close()
