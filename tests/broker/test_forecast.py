from __future__ import annotations

import json
import math
import random
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhymed_broker.forecast import Forecast

RECORDED = Path(__file__).parent.parent / "data" / "lengths.json"
Trace = list[list[list[int]]]  # epoch, prompt, sample: response tokens
Look = Callable[[Forecast, int, str, list[int]], None]


def synthetic(
    prompts: int = 512, size: int = 16, epochs: int = 4, cap: int = 32768, growth: float = 0.0, seed: int = 0
) -> Trace:
    """Log-normal: 0.8 between prompts, 0.35 between samples, 0.1 from one epoch to the next; 3,000 tokens."""
    draw = np.random.default_rng(seed)
    level = math.log(3000) + 0.8 * draw.standard_normal(prompts)
    trace = []
    for _ in range(epochs):
        lengths = np.exp(level[:, None] + 0.35 * draw.standard_normal((prompts, size)))
        trace.append(lengths.clip(1, cap).astype(int).tolist())
        level += growth + 0.1 * draw.standard_normal(prompts)
    return trace


TRACES = {
    "synthetic": (synthetic, 32768, 64),
    "recorded": (lambda: json.loads(RECORDED.read_text())["lengths"], 2048, 8),
}


@pytest.fixture(params=TRACES)
def run(request: pytest.FixtureRequest) -> tuple[Trace, int, int]:
    """Lengths, cap, prompts in a step."""
    make, cap, prompts = TRACES[request.param]
    return make(), cap, prompts


def replay(run: tuple[Trace, int, int], look: Look) -> None:
    """Looks at every group before its samples end (or makes them end), from the second epoch on."""
    lengths, cap, count = run
    forecast = Forecast(cap)
    for epoch, prompts in enumerate(lengths):
        for first in range(0, len(prompts), count):
            step = (epoch * len(prompts) + first) // count
            group = {f"p{number}": list(prompts[number]) for number in range(first, first + count)}
            forecast.open(step, group)
            for prompt, left in group.items():
                if epoch:
                    look(forecast, step, prompt, left)
                for tokens in left:
                    forecast.finished(step, prompt, tokens)
            forecast.close(step)


def taught(*, cap: int = 32768, prompts: int = 64, seed: int = 1) -> tuple[Forecast, Trace]:
    """A forecast that saw one epoch in one step, and what is to come."""
    trace = synthetic(prompts=prompts, epochs=2, cap=cap, seed=seed)
    forecast = Forecast(cap)
    for number, samples in enumerate(trace[0]):
        for tokens in samples:
            forecast.finished(0, f"p{number}", tokens)
    forecast.close(0)
    return forecast, trace


def quantile(forecast: Forecast, step: int, prompt: str, q: float, tokens: int = 0) -> float:
    """The total length that a sample with `tokens` does not exceed with probability `q`."""
    if tokens >= forecast.cap:
        return float(forecast.cap)
    model, table = forecast._model, forecast._table(step, prompt, tokens)
    rest = (1 - q) * forecast._beyond(table, tokens)[0]
    bin = max(0, model.bins - int(table[0][::-1].searchsorted(rest)))
    if bin == model.bins:
        return float(forecast.cap)
    above, below = float(table[0][bin]), float(table[0][bin + 1])
    part = min(1.0, max(0.0, above - rest) / (above - below or 1.0))
    return min(max(1.0, tokens, math.exp((bin + part) * model.width)), float(forecast.cap))


def inside(forecast: Forecast, step: int, prompt: str, samples: Sequence[int], reached: int = 0) -> list[bool]:
    """Which of those that come farther than `reached` end in the interval that holds four of five."""
    low, high = (quantile(forecast, step, prompt, q, reached) for q in (0.1, 0.9))
    return [low <= tokens <= high for tokens in samples if tokens > reached]


def off(forecast: float, tokens: Sequence[int]) -> float:
    """Mean absolute error of the logarithm."""
    return float(np.abs(np.log(forecast) - np.log(tokens)).mean())


def test_four_of_five_samples_end_where_they_should(run: tuple[Trace, int, int]) -> None:
    hits: dict[str, list[bool]] = {"not begun": [], "some way": [], "shorter siblings ended": []}

    def look(forecast: Forecast, step: int, prompt: str, left: list[int]) -> None:
        expected = forecast.expect(step, prompt)
        hits["not begun"] += inside(forecast, step, prompt, left)
        for share in (0.5, 1.0):
            hits["some way"] += inside(forecast, step, prompt, left, int(share * expected))
        for share in (0.7, 1.0):
            now = int(share * expected)
            for tokens in [tokens for tokens in left if tokens <= now]:
                left.remove(tokens)
                forecast.finished(step, prompt, tokens)
            forecast.running(step, prompt, [now] * len(left))
            hits["shorter siblings ended"] += inside(forecast, step, prompt, left, now)

    replay(run, look)
    for when, found in hits.items():  # to 5 %, and a standard error
        assert abs(np.mean(found) - 0.8) < 0.05 + 0.4 / math.sqrt(len(found)), when


def test_nearer_than_the_means_of_run_and_prompt(run: tuple[Trace, int, int]) -> None:
    """The median is what an absolute error asks for."""
    errors: list[list[float]] = []
    seen = {f"p{number}": list(samples) for number, samples in enumerate(run[0][0])}
    everything = float(np.mean(run[0]))

    def look(forecast: Forecast, step: int, prompt: str, left: list[int]) -> None:
        mean, median = forecast.expect(step, prompt), quantile(forecast, step, prompt, 0.5)
        errors.append([off(guess, left) for guess in (mean, median, everything, float(np.mean(seen[prompt])))])
        seen[prompt] += left

    replay(run, look)
    mean, median, run_mean, prompt_mean = np.mean(errors, axis=0)
    assert mean < 0.5 * run_mean
    assert median < 0.99 * prompt_mean


def test_growing_lengths_are_expected_to_grow() -> None:
    errors: list[tuple[float, float]] = []
    trace = synthetic(prompts=128, size=8, epochs=3, growth=0.15)
    last = dict(enumerate(trace[1]))

    def look(forecast: Forecast, step: int, prompt: str, left: list[int]) -> None:
        if step >= 4:
            before = float(np.mean(last[int(prompt[1:])]))
            errors.append((off(forecast.expect(step, prompt), left), off(before, left)))

    replay((trace, 32768, 64), look)
    expected, last_mean = np.mean(errors, axis=0)
    assert expected < 0.98 * last_mean


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 20.0])
def test_a_quarter_of_the_siblings_corrects_a_wrong_history(factor: float) -> None:
    forecast, trace = taught()
    before, after = [], []
    for number in range(32):
        prompt, lengths = f"p{number}", sorted(max(1, int(factor * tokens)) for tokens in trace[1][number])
        truth = math.log(min(32768, np.mean(lengths)))
        before.append(abs(math.log(forecast.expect(1, prompt)) - truth))
        for tokens in lengths[:4]:
            forecast.finished(1, prompt, tokens)
        forecast.running(1, prompt, [lengths[3]] * 12)
        after.append(abs(math.log(forecast.expect(1, prompt)) - truth))
    assert np.mean(after) < 0.5 * np.mean(before)


def test_the_first_to_end_are_the_short_ones_and_running_siblings_tell() -> None:
    forecast, trace = taught()
    reported, untold = [], []
    for number, samples in enumerate(trace[1]):
        lengths = sorted(samples)
        for step, errors in ((1, untold), (2, reported)):
            for tokens in lengths[:4]:
                forecast.finished(step, f"new{number}", tokens)
            forecast.running(step, f"new{number}", [lengths[3]] * (12 if errors is reported else 0))
            errors.append(math.log(forecast.expect(step, f"new{number}") / np.mean(lengths)))
    assert np.mean(untold) < -0.2
    assert abs(np.mean(reported)) < 0.1


def test_progress_corrects_a_wrong_history() -> None:
    forecast, _ = taught()
    expected = forecast.expect(1, "p0")
    left = [forecast.left(1, "p0", int(times * expected)) for times in (0.5, 1, 2, 4)]
    assert left[0] < expected
    assert 0.1 * expected < left[1] < left[2] < left[3], "the farther beyond the forecast, the less it says"


def test_what_a_sample_reached_is_no_news_about_itself() -> None:
    forecast, _ = taught()
    alone = forecast.left(1, "p0", 9000)
    forecast.running(1, "p0", [9000])
    assert forecast.left(1, "p0", 9000) == pytest.approx(alone, rel=1e-4)
    forecast.running(1, "p0", [9000] * 8)
    assert forecast.left(1, "p0", 9000) > alone


def test_what_the_store_remembers_counts_as_what_was_seen() -> None:
    seen, trace = taught()
    reported = Forecast(32768)
    for number, samples in enumerate(trace[0]):
        reported.remember(f"p{number}", [(-1, 0), *((0, tokens) for tokens in samples)])
    assert [reported.expect(1, f"p{number}") for number in range(64)] == pytest.approx(
        [seen.expect(1, f"p{number}") for number in range(64)], rel=0.05
    )


def test_newer_history_weighs_more() -> None:
    forecast, _ = taught()
    forecast.remember("p0", [(step, 2000 if step < 8 else 4000) for step in range(16) for _ in range(8)])
    assert 3500 < forecast.expect(16, "p0") < 4700
    forecast.remember("p0", [(0, 500)] * 8)
    assert 400 < forecast.expect(16, "p0") < 700, "remembered anew: the rest is forgotten"


def test_history_may_come_when_the_step_is_open() -> None:
    forecast, _ = taught()
    forecast.open(1, ["new"])
    before = forecast.expect(1, "new")
    forecast.remember("new", [(0, 100)] * 16)
    assert forecast.expect(1, "new") < 130 < before


def test_a_prompt_without_history_is_like_the_others() -> None:
    forecast, trace = taught()
    assert forecast.expect(1, "new") == pytest.approx(np.mean(trace[0]), rel=0.2)
    assert 0.7 < np.mean([hit for samples in trace[1] for hit in inside(forecast, 1, "new", samples)]) < 0.9


def test_before_anything_is_known_the_cap_says_something() -> None:
    forecast = Forecast(4096)
    assert quantile(forecast, 0, "a", 0.5) == pytest.approx(4096 / 8, rel=0.1)
    assert forecast.expect(0, "a") == forecast.expect(0, "b")


def test_a_prompt_whose_samples_all_hit_the_cap() -> None:
    forecast, _ = taught(cap=4096)
    for _ in range(16):
        forecast.finished(1, "p0", 4096)
    assert forecast.expect(1, "p0") > 0.95 * 4096
    forecast.close(1)
    assert 0.9 * 4096 < forecast.expect(2, "p0") <= 4096
    assert quantile(forecast, 2, "p0", 0.5) == 4096


def test_many_samples_at_the_cap_are_expected_there() -> None:
    trace = synthetic(prompts=128, cap=3000)
    expected: list[float] = []
    replay((trace, 3000, 32), lambda forecast, step, prompt, left: expected.append(forecast.expect(step, prompt)))
    assert np.mean(np.equal(trace, 3000)) > 0.4
    assert np.mean(expected) == pytest.approx(np.mean(trace[1:]), rel=0.02)


@pytest.mark.parametrize("cap", [1, 2, 7, 512, 1 << 20])
def test_nothing_is_longer_than_the_cap(cap: int) -> None:
    forecast = Forecast(cap)
    for _ in range(20):
        forecast.finished(0, "a", 10 * cap)
    forecast.close(0)
    assert 1 <= forecast.expect(1, "a") <= cap
    assert quantile(forecast, 1, "a", 1.0) == cap
    assert quantile(forecast, 1, "a", 0.5, cap + 5) == cap
    assert forecast.left(1, "a", cap) == forecast.left(1, "a", 2 * cap) == 0
    assert forecast.left(1, "a", cap - 1) == 1


@pytest.mark.parametrize("tokens", [0, -3, math.nan, -math.inf])
def test_what_is_no_length_is_refused(tokens: float) -> None:
    forecast = Forecast(100)
    with pytest.raises(ValueError, match="cannot have"):
        forecast.finished(0, "a", tokens)  # type: ignore[arg-type]
    if tokens:
        with pytest.raises(ValueError, match="cannot have"):
            forecast.left(0, "a", tokens)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot have"):
            forecast.running(0, "a", [5, tokens])  # type: ignore[list-item]
    forecast.remember("a", [(0, tokens)])  # type: ignore[list-item]
    assert forecast.expect(0, "a") == Forecast(100).expect(0, "a")


@pytest.mark.parametrize("wrong", [-0.1, math.nan])
def test_what_is_no_cap_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="cap"):
        Forecast(wrong)  # type: ignore[arg-type]


def test_the_order_in_which_samples_end_does_not_matter() -> None:
    ends = [(f"p{number}", tokens) for number, samples in enumerate(synthetic(32, 8, 1)[0]) for tokens in samples]
    answers = []
    for seed in range(3):
        random.Random(seed).shuffle(ends)
        forecast = Forecast(32768)
        if seed:
            forecast.open(0, [f"p{number}" for number in range(32)])  # or not
        for prompt, tokens in ends:
            forecast.finished(0, prompt, tokens)
        now = forecast.expect(0, "p3")
        forecast.close(0)
        answers.append(
            (now, forecast.expect(1, "p3"), quantile(forecast, 1, "p5", 0.9), forecast.left(1, "new", 900))
        )
    assert answers[1] == pytest.approx(answers[0], rel=1e-4)
    assert answers[2] == pytest.approx(answers[0], rel=1e-4)


def test_memory_is_bounded_by_prompts() -> None:
    forecast, samples = Forecast(32768), synthetic(64, 8, 1)[0]
    sizes = []
    tracemalloc.start()
    for step in range(6):
        forecast.finished(step - 3, "late", 100)  # its step is over
        for number, lengths in enumerate(samples):
            for tokens in lengths:
                forecast.finished(step, f"p{number}", tokens)
            forecast.expect(step, f"p{number}")
        forecast.close(step)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[5] < sizes[1] + 1e5, "nothing is kept of a step"
    assert sizes[1] < 4e6, "the grid's tables, and little for a prompt"


LENGTHS = st.lists(st.integers(1, 5000), max_size=8)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, LENGTHS, LENGTHS, st.integers(0, 2100), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_answers_are_lengths(
    past: list[int], ended: list[int], running: list[int], reached: int, shares: list[float]
) -> None:
    forecast = Forecast(2048)
    forecast.remember("a", [(number // 3, tokens) for number, tokens in enumerate(past)])
    for tokens in ended:
        forecast.finished(9, "a", tokens)
    forecast.running(9, "a", running)
    assert 1 <= forecast.expect(9, "a") <= 2048
    left = forecast.left(9, "a", reached)
    assert 1 <= left <= 2048 - reached if reached < 2048 else left == 0
    found = [quantile(forecast, 9, "a", q, reached) for q in sorted(shares)]
    assert found == sorted(found)
    assert all(min(reached, 2048) <= tokens <= 2048 for tokens in found)
