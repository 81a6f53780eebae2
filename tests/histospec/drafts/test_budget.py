"""The budget: what it takes, what it learns about the engine's time, and that it lets drafting be where it costs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rhymed.histospec.drafts.budget import Aimd, Budget, CostCurve

LARGEST = 1024


def table(requests: int, width: int, accept: float) -> NDArray[np.float32]:
    """Survival of `width` tokens a request when each is accepted with this probability."""
    return np.tile((accept ** np.arange(1, width + 1)).astype(np.float32), (requests, 1))


def rate(survival: NDArray[np.float32], lengths: NDArray[np.int32], seconds: float) -> float:
    taken = np.arange(survival.shape[1]) < lengths[:, None]
    return float((len(lengths) + survival[taken].sum()) / seconds)


def cost(requests: int, tokens: int, a_token: float) -> float:
    """An engine with free places up to 32 tokens, then twice the price."""
    return 0.005 + 0.0001 * requests + a_token * (tokens + max(0, tokens - 32))


def drive(requests: int, accept: float, a_token: float, steps: int, noise: float = 0.1) -> list[NDArray[np.int32]]:
    """A budget that meets an engine: the lengths of every step."""
    rng = np.random.default_rng(0)
    budget, width = Budget(LARGEST), 32
    survival, full = table(requests, width, accept), np.full(requests, width, np.int32)
    made = []
    for _ in range(steps):
        lengths = budget.choose(survival, full)
        tokens = requests + int(lengths.sum())
        came = requests + round(float(survival[np.arange(width) < lengths[:, None]].sum()))
        budget.observe(requests, tokens, cost(requests, tokens, a_token) * rng.lognormal(0, noise), came)
        made.append(lengths)
    return made


@pytest.mark.parametrize("requests", [1, 4, 16, 64])
def test_it_comes_close_to_the_best_rate(requests: int) -> None:
    survival = table(requests, 32, 0.9)
    worth = np.sort(survival.ravel())[::-1].astype(float)
    made = requests + np.concatenate([[0.0], np.cumsum(worth)])
    best = max(made[n] / cost(requests, requests + n, 0.0002) for n in range(len(made)))
    chosen = drive(requests, 0.9, 0.0002, 400)[100:]
    reached = [rate(survival, one, cost(requests, requests + int(one.sum()), 0.0002)) for one in chosen]
    assert np.mean(reached) > 0.93 * best


def test_nothing_is_drafted_where_a_token_costs_more_than_it_brings() -> None:
    chosen = drive(16, 0.3, 0.002, 400)
    assert np.mean([one.sum() for one in chosen[50:]]) < 0.5  # of 512 tokens offered


@pytest.mark.parametrize("slow", [1, 4, 8])
def test_slow_steps_at_the_start_do_not_end_drafting_for_good(slow: int) -> None:
    """The first steps that verify take twenty times as long; right drafts are tried again."""
    budget, survival, full = Budget(LARGEST), table(4, 32, 0.98), np.full(4, 32, np.int32)
    rng, verified, drafting = np.random.default_rng(0), 0, []
    for _ in range(2500):
        lengths = budget.choose(survival, np.zeros_like(full) if budget.paused() else full)
        tokens = 4 + int(lengths.sum())
        seconds = cost(4, tokens, 0.0002) * rng.lognormal(0, 0.1)
        verified += tokens > 4
        budget.observe(4, tokens, 0.2 if tokens > 4 and verified <= slow else seconds, tokens)
        drafting.append(tokens > 4)
    assert np.mean(drafting[1500:]) > 0.9


def test_looks_at_what_does_not_pay_cost_little() -> None:
    """They may cost a hundredth of the time that plain decoding takes for what was made."""
    requests, accept, took, worth = 4, 0.6, 0.0, 0.0
    survival = table(requests, 32, accept)
    for lengths in drive(requests, accept, 0.02, 6000)[50:]:
        made = requests + float(survival[np.arange(32) < lengths[:, None]].sum())
        took += cost(requests, requests + int(lengths.sum()), 0.02)
        worth += cost(requests, requests, 0.02) * made / requests
    assert took < 1.01 * worth


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0.0, 0.1), (1.0, 0.85, 1.0)])
def test_it_rests_where_drafts_bring_less_than_they_promise(share: float, least: float, most: float) -> None:
    """`share`: of the promised tokens, how many come. Counted are the steps that draft."""
    budget, survival, full = Budget(LARGEST), table(16, 8, 0.7), np.full(16, 8, np.int32)
    drafting, took, plain = [], 0.0, cost(16, 16, 0.0004)
    for _ in range(6000):
        lengths = budget.choose(survival, np.zeros_like(full) if budget.paused() else full)
        taken = np.arange(8) < lengths[:, None]
        made = 16 + share * float(survival[taken].sum())
        seconds = cost(16, 16 + int(lengths.sum()), 0.0004)
        budget.observe(16, 16 + int(lengths.sum()), seconds, round(made))
        drafting.append(lengths.sum() > 0)
        took += seconds / (made / 16 * plain)
    assert least <= np.mean(drafting) <= most
    assert took / 6000 < 1.05, "time for what was made, over what it takes plain decoding"


def test_the_most_probable_tokens_are_taken_and_always_a_prefix() -> None:
    budget = Budget(LARGEST)
    survival = np.array([[0.9, 0.8, 0.1], [0.3, 0.2, 0.1], [0.85, 0.1, 0.05]], np.float32)
    lengths = np.array([3, 3, 2], np.int32)
    for _ in range(300):
        chosen = budget.choose(survival, lengths)
        budget.observe(3, 3 + int(chosen.sum()), 0.01 + 0.002 * (3 + int(chosen.sum())), 3 + int(chosen.sum()))
        assert (chosen <= lengths).all()
    assert budget.choose(survival, lengths).tolist() in ([2, 0, 1], [2, 1, 1])


def test_no_drafts_no_choice() -> None:
    assert Budget(LARGEST).choose(np.zeros((3, 4), np.float32), np.zeros(3, np.int32)).tolist() == [0, 0, 0]


def test_a_step_never_holds_more_than_the_engine_takes() -> None:
    budget = Budget(20)
    for _ in range(40):
        chosen = budget.choose(table(8, 32, 0.99), np.full(8, 32, np.int32))
        assert chosen.sum() <= 12
        budget.observe(8, 8 + int(chosen.sum()), 0.01, 8 + int(chosen.sum()))


@pytest.mark.parametrize("drafting", [0.0, 0.3])
def test_what_drafting_itself_takes_is_weighed_too(drafting: float) -> None:
    """Drafts that gain a sixth pay where drafting is free, not where it takes a third of a step."""
    budget, survival, full = Budget(LARGEST), table(16, 1, 0.5), np.full(16, 1, np.int32)
    chosen = []
    for _ in range(400):
        lengths = budget.choose(survival, full)
        tokens = 16 + int(lengths.sum())
        draft_s = drafting * 0.01
        seconds = 0.01 + 0.0002 * (tokens - 16) + draft_s
        budget.observe(16, tokens, seconds, 16 + round(0.5 * float(lengths.sum())), draft_s)
        chosen.append(lengths.sum())
    assert (np.mean(chosen[200:]) > 8) == (drafting == 0.0)
    assert budget.curve.predict(16, 16) == pytest.approx(0.01, rel=0.05)


def test_the_curve_follows_an_engine_that_changes() -> None:
    curve, rng = CostCurve(LARGEST), np.random.default_rng(1)
    for slow in (1.0, 3.0):
        for _ in range(1500):
            tokens = int(rng.integers(4, 200))
            curve.observe(4, tokens, slow * cost(4, tokens, 0.0002))
        for tokens in (4, 16, 100, 180):
            assert curve.table(4)[tokens] == pytest.approx(slow * cost(4, tokens, 0.0002), rel=0.1)


def test_a_single_slow_step_says_nothing() -> None:
    curve = CostCurve(LARGEST)
    for step in range(100):
        curve.observe(4, 4 + step % 30, 0.01)
    before = curve.table(4)[:40].copy()
    curve.observe(4, 10, 5.0)
    curve.observe(4, 11, 0.01)
    assert curve.table(4)[:40] == pytest.approx(before, rel=0.02)


def test_steps_that_others_disturb_do_not_lift_the_curve() -> None:
    """One in twenty takes twice as long, plain ones and others."""
    curve, rng = CostCurve(LARGEST), np.random.default_rng(3)
    for step in range(2000):
        tokens = 16 if step % 32 == 0 else int(rng.integers(40, 80))
        curve.observe(16, tokens, cost(16, tokens, 0.0002) * (2.0 if rng.random() < 0.05 else 1.0))
    for tokens in (16, 60):
        assert curve.predict(16, tokens) == pytest.approx(cost(16, tokens, 0.0002), rel=0.05)


def test_a_slow_beginning_is_soon_forgotten() -> None:
    """While processes start, steps take five times as long; plain steps are rare."""
    curve, rng = CostCurve(LARGEST), np.random.default_rng(4)
    for step in range(160):
        tokens = 16 if step % 32 == 0 else int(rng.integers(40, 80))
        slow = 5.0 if step < 40 else 1.0
        curve.observe(16, tokens, cost(16, tokens, 0.0002) * slow * rng.lognormal(0, 0.1))
    for tokens in (16, 60):
        assert curve.predict(16, tokens) == pytest.approx(cost(16, tokens, 0.0002), rel=0.3)


def test_what_verifying_costs_at_all_is_not_taken_for_plain_decoding() -> None:
    """A quarter more time, be it one drafted token; plain steps are rare."""
    budget, rng = Budget(LARGEST), np.random.default_rng(5)
    for step in range(600):
        tokens = 16 if step % 128 < 4 else 16 + int(rng.integers(1, 12))
        seconds = cost(16, tokens, 0.0002) * (1.25 if tokens > 16 else 1.0) * rng.lognormal(0, 0.1)
        budget.observe(16, tokens, seconds, tokens)
    assert budget.curve.predict(16, 16) == pytest.approx(cost(16, 16, 0.0002), rel=0.06)
    assert budget.curve.predict(16, 20) == pytest.approx(1.25 * cost(16, 20, 0.0002), rel=0.06)
    assert budget.curve.table(16)[[16, 20]] == pytest.approx([budget.curve.predict(16, count) for count in (16, 20)])


def test_more_tokens_never_take_less_time() -> None:
    curve, rng = CostCurve(LARGEST), np.random.default_rng(2)
    for _ in range(200):
        curve.observe(8, int(rng.integers(8, 300)), float(rng.uniform(0.01, 0.02)))
    assert (np.diff(curve.table(8)) >= 0).all()


def test_no_step_is_thought_to_take_no_time() -> None:
    """Steep where it was measured: a straight line from there would be below zero before it comes to plain steps."""
    curve = CostCurve(LARGEST)
    for step in range(60):
        tokens = 60 + step % 20
        curve.observe(16, tokens, 0.01 + 0.002 * (tokens - 60))
    assert curve.predict(16, 16) >= 0.01 * 16 / 60
    assert curve.table(16)[16] == pytest.approx(curve.predict(16, 16))
    assert curve.table(16)[1:].min() > 0


def test_aimd_is_the_rule_of_the_paper() -> None:
    rule = Aimd()
    lengths = [rule.limit("a")]
    for _ in range(20):
        rule.observe("a", rule.limit("a"), rule.limit("a"))
        lengths.append(rule.limit("a"))
    assert lengths[:4] == [2, 4, 6, 8]
    assert lengths[-1] == 32
    rule.observe("a", 32, 31)
    assert rule.limit("a") == 2
    rule.observe("a", 0, 0)  # nothing was drafted: nothing is learnt
    assert rule.limit("a") == 2
    assert rule.limit("b") == 2


def test_a_step_without_drafts_is_its_own_measure_and_drafts_make_none_quicker():
    curve = Budget(LARGEST).curve
    for _ in range(40):
        curve.observe(4, 4, 0.05)
    assert curve.undrafted(4, 0, 0.02, True) == (0.02, 0.02)
    assert curve.undrafted(4, 8, 0.02, True) == (0.02, 0.02)
    assert curve.undrafted(4, 8, 0.2, True) == pytest.approx((0.05, 0.05), rel=0.05)


def test_what_a_step_did_for_prompts_counts_without_drafts_too():
    curve = Budget(LARGEST).curve
    for _ in range(200):
        curve.observe(4, 4, 0.05)
        curve.observe(4, 36, 0.08)
    plain, more = curve.undrafted(4, 32, 0.28, False)
    assert plain == pytest.approx(0.25, rel=0.05)
    assert more == pytest.approx(0.05, rel=0.05)
    assert curve.undrafted(4, 32, 0.03, False) == (0.03, 0.03)


def test_plain_decoding_of_another_number_of_requests_is_measured_at_once():
    """Where 16 of 64 tokens verified are known, the curve knows little of 64 plain ones."""
    budget = Budget(LARGEST)

    def steps(requests, count):
        chosen = []
        for _ in range(count):
            lengths = budget.choose(table(requests, 4, 0.9), np.full(requests, 4, np.int32))
            tokens = requests + int(lengths.sum())
            budget.observe(requests, tokens, cost(requests, tokens, 0.0001), tokens)
            chosen.append(tokens - requests)
        return chosen

    assert steps(16, 100)[-1] > 0
    first = steps(64, 20)
    assert first[:3] == [0, 0, 0], "one after drafts, and two that are measured"
    assert first[3] > 0
    assert budget.curve.predict(64, 64) == pytest.approx(cost(64, 64, 0.0001), rel=0.03)
    assert steps(60, 20)[0] > 0, "about as many"


def test_where_no_plain_step_can_be_measured_drafting_goes_on():
    budget = Budget(LARGEST)
    chosen = []
    for step in range(400):
        requests = 16 if step < 100 else 64
        lengths = budget.choose(table(requests, 4, 0.9), np.full(requests, 4, np.int32))
        tokens = requests + int(lengths.sum())
        if requests == 16 or tokens > requests:
            budget.observe(requests, tokens, cost(requests, tokens, 0.0001), tokens)
        chosen.append(tokens > requests)
    assert sum(chosen[100:]) > 200
