from __future__ import annotations

from collections.abc import Sequence

from rhymed.core.messages import Fork
from rhymed_store.client import StoredSample
from rhymed_workers.reward.scorers.setting import EARNED, MESSAGES, STATE, TRANSCRIPT, TURN_REWARDS, TURNS
from rhymed_workers.reward.worker import last_turn, with_session
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
    words = decode([given])[0].split()
    parts = [("assistant", words[:3]), ("user", words[3:5]), ("assistant", words[5:])]
    said = [{"role": role, "content": " ".join(part)} for role, part in parts]
    rewards = {EARNED: 0.0, TURN_REWARDS: None}
    assert row == {"prompt": "?", **rewards, TRANSCRIPT: " ".join(words), TURNS: 2, MESSAGES: said}
    reported = changed(given, said=['[{"role": "assistant", "content": "a"}]', "[]"], state='{"score": 2}')
    row = with_session({}, reported, decode)
    assert (row[MESSAGES], row[STATE]) == ([{"role": "assistant", "content": "a"}], {"score": 2})
    assert with_session({}, changed(given, turn_rewards=[0.5, 0.25]), decode)[TURN_REWARDS] == [0.5, 0.25]
    forked = changed(given, forks=[Fork(start=3, row=0, shared=5)])
    assert with_session({}, forked, decode)[TRANSCRIPT] == f"{' '.join(words[:3])}\n\n{' '.join(words[3:])}"
