"""Rows of a sample, what is refused of them, and the metrics of turns."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from rhymed.core.algorithms import expand
from rhymed.core.config import Config
from rhymed.core.messages import Fork
from rhymed_store.client import StoredSample
from rhymed_workers.sessions.finish import joined
from rhymed_workers.trainer import critic
from rhymed_workers.trainer.algorithms.advantages import advantages
from rhymed_workers.trainer.batch import assemble
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.packing import micro_batches
from rhymed_workers.trainer.samples import readable, sample_metrics
from rhymed_workers.trainer.turns import longest_response, problem, row_lengths, sequences_of, token_rewards
from tests.workers.sessions.test_finish import stored
from tests.workers.trainer import test_learner as learners
from tests.workers.trainer.sessions import cut_out, rows, sessions, written
from tests.workers.trainer.test_learner import changed, samples

learner = learners.learner
PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def test_the_rows_are_those_of_the_forks() -> None:
    given = sessions(0)
    expected = [(number, row) for number, sample in enumerate(given) for row in rows(sample)]
    found = sequences_of(given)
    assert len(found) == len(expected) > len(given)
    for sequence, (number, (tokens, learned)) in zip(found, expected, strict=True):
        assert sequence.sample == number
        assert [*sequence.prompt, *sequence.response] == tokens
        assert sequence.learned is not None
        assert sequence.learned.tolist() == learned[len(sequence.prompt) :]
        assert not any(learned[: len(sequence.prompt)])
        assert len(sequence.prompt)


@hypothesis.given(st.data())
def test_what_programs_write_is_learned_once_after_what_they_asked(data: st.DataObject) -> None:
    """Turns that ask with any beginning of what was said before, joined to a sample as the workers do it."""
    words = st.lists(st.integers(2, 5), min_size=1, max_size=3)
    turns: list[tuple[list[int], list[int]]] = []
    for number in range(data.draw(st.integers(1, 5))):
        before, said = data.draw(st.sampled_from(turns)) if turns else ([], [])
        kept = data.draw(st.integers(0, len(before) + len(said)))
        turns.append(((before + said)[:kept] + data.draw(words), [10 * number + 10 + k for k in data.draw(words)]))
    sample = joined(stored(turns))
    assert problem(sample.info) == ""
    kept_sample = StoredSample(
        sample.info,
        np.asarray(sample.tokens),
        None,
        np.asarray(sample.prompt_tokens),
        floors=-np.asarray(sample.tokens).astype(np.float32),
    )
    for sequence in sequences_of([kept_sample]):
        np.testing.assert_array_equal(sequence.floors, -sequence.response.astype(np.float32))
    found = sorted(
        [*sequence.prompt.tolist(), *sequence.response[: place + 1].tolist()]
        for sequence in sequences_of([kept_sample])
        for place in np.flatnonzero(sequence.learned if sequence.learned is not None else sequence.response >= 0)
    )
    assert found == sorted(before + said[: place + 1] for before, said in turns for place in range(len(said)))


def test_lengths_are_those_of_rows() -> None:
    for sample in sessions(0):
        lengths = [len(tokens) for tokens, _ in rows(sample)]
        assert row_lengths(sample.info) == lengths
        assert longest_response(sample.info) == max(lengths) - sample.info.prompt_length
    for sample in samples(0):
        assert row_lengths(sample.info) == [sample.info.prompt_length + sample.info.length]
        assert longest_response(sample.info) == sample.info.length


@pytest.mark.parametrize("micro_tokens", [1, 30, 60, 4096])
def test_a_sample_is_whole_in_one_micro_batch_where_that_is_needed(micro_tokens: int) -> None:
    given = sequences_of(sessions(0))
    batches = micro_batches(given, range(len(given)), micro_tokens, whole=True)
    found = [sorted({given[number].sample for number in batch.sequences}) for batch in batches]
    assert sorted(itertools.chain(*found)) == list(range(12))
    assert all(
        batch.tokens <= micro_tokens for batch, numbers in zip(batches, found, strict=True) if len(numbers) > 1
    )
    apart = micro_batches(given, range(len(given)), micro_tokens)
    assert all(batch.tokens <= micro_tokens or len(batch.sequences) == 1 for batch in apart)
    for every in (batches, apart):
        flat = np.concatenate([batch.flat_N for batch in every])
        assert sorted(flat.tolist()) == list(range(sum(sequence.size for sequence in given)))


def test_rows_of_equal_prompts_share_them() -> None:
    sample = sessions(0)[3]  # its rows 3 and 4 begin with the same tokens, and rows 1 and 2 with the prompt
    given = sequences_of([sample])
    (batch,) = micro_batches(given, range(4), 4096, whole=True)
    assert batch.tokens == 2 * sample.info.prompt_length + 2 + sample.info.length
    assert len(batch.bounds) == 2


@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("lam", [None, 1.0, 0.9])
def test_rewards_count_from_the_token_that_earned_them(gamma: float, lam: float | None) -> None:
    """By a second definition: the policy's tokens of a sample one after another, each the sum of what is earned from
    it on. `lam`: of gae, with values; None: returns."""
    draw = np.random.default_rng(0)
    given = [
        replace(one, token_rewards=[(place, float(place + 1)) for place in range(number % 3, one.info.length, 3)])
        for number, one in enumerate(sessions(0))
    ]
    given[1] = replace(given[1], token_rewards=[])
    lengths_B = torch.tensor([one.info.learned for one in given])
    rewards_B = torch.tensor([one.info.reward for one in given], dtype=torch.float64)
    earned_N = torch.from_numpy(token_rewards(given))
    values_N = torch.from_numpy(draw.normal(size=int(lengths_B.sum())))
    changes = {"whiten": False, "gamma": gamma}
    if lam is None:
        recipe = expand("reinforce++", {**changes, "kl_coef": 0.0})
        found_N = advantages(rewards_B, torch.zeros_like(lengths_B), lengths_B, recipe, earned_N=earned_N)
    else:
        recipe, ones_N = expand("ppo", {**changes, "gae_lambda": lam, "kl_coef": 0.0}), torch.ones(len(values_N))
        found_N, _ = critic.advantages(values_N, ones_N, rewards_B, lengths_B, recipe, earned_N=earned_N)
    expected = list[float]()
    start = 0
    for one in given:
        own = np.flatnonzero(written(one.info))
        earned = np.zeros(len(own))
        for place, reward in one.token_rewards:
            earned[max(0, int((own <= place).sum()) - 1)] += reward
        assert one.info.reward is not None
        earned[-1] += one.info.reward - earned.sum()
        values = np.append(values_N[start : start + len(own)].numpy(), 0.0)
        if lam is None:
            expected += [float((gamma ** np.arange(len(own) - at) * earned[at:]).sum()) for at in range(len(own))]
        else:
            deltas = earned + gamma * values[1:] - values[:-1]
            expected += [
                float(((gamma * lam) ** np.arange(len(own) - at) * deltas[at:]).sum()) for at in range(len(own))
            ]
        start += len(own)
    assert found_N.tolist() == pytest.approx(expected, rel=1e-5)
    assert token_rewards([replace(one, token_rewards=[]) for one in given]) is None


def test_a_step_has_the_advantages_of_its_turns() -> None:
    """A reward that the first turn alone earned is no advantage of later turns, for `return`."""
    given = [changed(one, reward=1.0) for one in sessions(0) if len(one.info.turns) > 2]
    given = [replace(one, token_rewards=[(one.info.turn_ends[0], 1.0)]) for one in given]
    plain = {"algorithm": "reinforce++", "whiten": False, "kl_coef": 0.0}
    settings = Config.model_validate({"trainer": plain}).trainer
    batch = assemble(given, settings, 64, lambda batches, count: torch.zeros(count))
    expected = [float(place < one.info.turns[0]) for one in given for place in np.flatnonzero(written(one.info))]
    assert batch.advantages_N.tolist() == expected
    assert 0 < sum(expected) < len(expected)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"turns": [3, 2]}, "turns [3, 2] that are not its 7 tokens"),
    ({"turns": [0, 7]}, "or none of the policy"),
    ({"turns": [-1, 2, 6]}, "turns [-1, 2, 6]"),
    ({"forks": [Fork(start=4, row=0, shared=5)]}, "a row that begins within a turn, at token 4"),
    ({"turns": [], "forks": [Fork(start=4, row=0, shared=5)]}, "a row that begins within a turn, at token 4"),
    ({"forks": [Fork(start=0, row=0, shared=5)]}, "rows that begin at [0, 7] of its 7 tokens"),
    ({"forks": [Fork(start=7, row=0, shared=5)]}, "rows that begin at [7, 7]"),
    ({"forks": [Fork(start=5, row=0, shared=5), Fork(start=3, row=0, shared=5)]}, "rows that begin at [5, 3, 7]"),
    ({"forks": [Fork(start=3, row=1, shared=5)]}, "row 1 that continues row 1, which is not before it"),
    ({"forks": [Fork(start=3, row=0, shared=9)]}, "row 1 that shares 9 tokens of the 8 of row 0"),
    ({"forks": [Fork(start=5, row=0, shared=0)]}, "row 1 without a token before the policy's"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=str)
def test_a_sample_with_other_rows_than_tokens_is_left_out_in_words(
    fields: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = sessions(0)[0]
    assert given.info.turns == [3, 2, 2]
    assert problem(given.info) == ""
    with caplog.at_level(logging.ERROR):
        assert readable(0, [changed(given, **fields), given], 0, 256, 16, 16) == [given]
    assert words in caplog.text


def test_every_row_has_to_fit_the_model(caplog: pytest.LogCaptureFixture) -> None:
    """A response may be longer than the limit if no row is: it is the sum of several."""
    given = sessions(0)
    longest = max(max(row_lengths(sample.info)[1:], default=0) for sample in given)
    first = max(row_lengths(sample.info)[0] - sample.info.prompt_length for sample in given)
    assert max(sample.info.length for sample in given) > first
    assert readable(0, given, 0, 256, 16, first) == given
    assert len(readable(0, given, 0, 256, 16, first - 1)) < len(given)
    copies = [Fork(start=3, row=0, shared=8), Fork(start=5, row=1, shared=10)]
    grown = changed(given[0], forks=copies)
    assert row_lengths(grown.info) == [8, 10, 12]
    with caplog.at_level(logging.ERROR):
        assert readable(0, [grown], 0, 256, 5, 7) == [grown]
        assert readable(0, [grown], 0, 256, 5, 6) == []
    assert "a row of 12 tokens, allowed are 5 + 6" in caplog.text
    assert longest > 0


def test_metrics_of_turns_are_means_over_samples_and_on_the_page(learner: Callable[..., TorchLearner]) -> None:
    given = sessions(0)
    found = sample_metrics(0, given, given)
    counts = [3 if s.info.turns == [2, 3, 1, 1, 4, 2] else sum(map(bool, s.info.turns[::2])) for s in given]
    assert found["turns/mean"] == pytest.approx(np.mean(counts))
    assert found["turns/max"] == 5
    assert found["turns/rows"] == pytest.approx(np.mean([len(rows(sample)) for sample in given]))
    written = sum(sum(learned) for sample in given for _, learned in rows(sample))
    assert found["turns/environment_ratio"] == pytest.approx(1 - written / sum(s.info.length for s in given))
    assert found["reward/earned"] == 1.5
    unearned = sample_metrics(0, [changed(sample, earned=None) for sample in given], given)
    assert "reward/earned" not in unearned
    assert not [name for name in sample_metrics(0, cut_out(given), given) if name.startswith("turns/")]
    names = {name for row in PAGE.splitlines() if row.startswith("| `") for name in _names(row)}
    assert set(learner().train(given)) <= names


def _names(row: str) -> list[str]:
    """Of the row's first cell: names, and endings of the one before."""
    found: list[str] = []
    for name in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
        found.append(found[-1].rpartition("/")[0] + name if name.startswith("/") else name)
    return found
