import numpy as np
import pytest

from rhymed.histospec.drafts.calibration import Calibration
from rhymed.histospec.drafts.trust import Trust
from rhymed.histospec.drafts.types import Matching
from rhymed.histospec.drafts.voting import draft
from rhymed.histospec.index import arena
from rhymed.histospec.index.index import Index
from rhymed.histospec.index.recent import Recent

TEXT = np.arange(100, 140, dtype=np.int32)


def drafted(recent: Recent, written: list[int], backoff: bool = False) -> list[int]:
    """What a request of a prompt without any history is drafted after these tokens."""
    index, fresh = Index(np.array([1, 2, 3], np.int32)), np.array(written, np.int32)
    row, limits = np.array([index.open()], np.int32), np.array([8], np.int32)
    offsets = np.array([0, len(fresh)], np.int32)
    matching = Matching(floor=0.0, backoff=backoff)
    drafts = draft([index], row, fresh, offsets, limits, matching, Calibration(), Trust(), None, recent.index)
    return drafts.tokens[0, : drafts.lengths[0]].tolist()


def test_a_prompt_without_history_drafts_from_responses_of_others() -> None:
    recent = Recent()
    recent.add(TEXT)
    assert drafted(recent, [9, 110, 111, 112]) == [*range(113, 121)]
    assert drafted(recent, [9, 111, 112]) == [], "a context of two tokens says too little"
    assert drafted(recent, [110, 111, 112], backoff=True) == [], "the paper's rule has only the prompt's own history"


def test_the_newest_half_is_always_there_and_the_oldest_goes() -> None:
    recent = Recent(capacity=1024)
    size = recent.index.nbytes
    texts = [np.arange(base, base + 40, dtype=np.int32) for base in range(1000, 11000, 100)]
    for number, text in enumerate(texts):
        recent.add(text)
        assert recent.index.nbytes == size
        for back in range(min(number, 6)):  # 64 slots each, so 8 are half of it
            assert drafted(recent, texts[number - back][:5].tolist())
    assert drafted(recent, texts[0][:5].tolist()) == []


def test_short_and_very_long_responses_do_not_make_it_grow() -> None:
    recent = Recent(capacity=1024)
    size = recent.index.nbytes
    for length in [1, 2, 5000, 0, 256, 255, *[1] * 100]:
        recent.add(np.arange(length, dtype=np.int32))
        assert recent.index.nbytes == size
        assert recent.index.array[arena.USED] <= 1024


def test_a_response_of_another_vocabulary_is_refused_whole() -> None:
    recent = Recent(vocabulary=120)
    with pytest.raises(ValueError, match="120"):
        recent.add(TEXT)
    assert recent.index.tokens == 0
