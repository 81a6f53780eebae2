from __future__ import annotations

from collections.abc import Sequence

from rhymed.messages import Fork
from rhymed_store.client import StoredSample
from rhymed_workers.reward.sessions import TRANSCRIPT, TURNS, last_turn, with_session
from rhymed_workers.scorers.setting import EARNED
from tests.workers.trainer.sessions import sessions
from tests.workers.trainer.test_learner import changed, samples


def decode(given: Sequence[StoredSample]) -> list[str]:
    return [" ".join(map(str, sample.tokens)) for sample in given]


def test_the_last_turn_is_the_last_words_of_the_policy() -> None:
    given = sessions(0)
    assert last_turn(given[0]).tokens.tolist() == given[0].tokens[5:].tolist()
    assert last_turn(given[1]).tokens.tolist() == given[1].tokens[7:11].tolist()  # the environment's come after it
    assert last_turn(given[2]).tokens.tolist() == given[2].tokens.tolist()
    assert last_turn(given[3]).tokens.tolist() == given[3].tokens[13:].tolist()
    assert last_turn(changed(given[0], last=0)).tokens.tolist() == given[0].tokens[:3].tolist(), "of an earlier row"
    silent = changed(given[0], turns=[3, 2, 0, 2])  # a row without a turn
    assert last_turn(silent).tokens.tolist() == given[0].tokens[:3].tolist()
    plain = samples(0)[0]
    assert last_turn(plain) is plain


def test_a_transcript_has_the_rows_one_after_another() -> None:
    given = sessions(0)[0]
    row = with_session({"prompt": "?"}, given, decode)
    assert row == {"prompt": "?", EARNED: 0.0, TRANSCRIPT: decode([given])[0], TURNS: 2}
    forked = changed(given, forks=[Fork(start=3, row=0, shared=5)])
    words = decode([given])[0].split()
    assert with_session({}, forked, decode)[TRANSCRIPT] == f"{' '.join(words[:3])}\n\n{' '.join(words[3:])}"
