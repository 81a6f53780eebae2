import numpy as np
import pytest

from rhymed.histospec.index.cache import Shelf
from rhymed.histospec.index.index import Index


def index(size=1000):
    made = Index(np.zeros(0, np.int32), expected=size)
    made.add(np.arange(size, dtype=np.int32), age=1)
    return made


@pytest.fixture
def shelf():
    made = Shelf(3 * index().nbytes)
    for prompt in "abc":
        assert made.put(prompt, index())
    yield made
    assert made.nbytes <= made.max_bytes


def test_the_least_recently_used_goes_first(shelf):
    shelf.get("a")
    assert shelf.put("d", index())
    assert list(shelf) == ["c", "a", "d"]
    assert (shelf.evicted, shelf.refused) == (1, 0)


def test_what_is_in_use_stays(shelf):
    rows = {prompt: shelf.get(prompt).open() for prompt in "ac"}
    assert shelf.put("d", index())
    assert list(shelf) == ["a", "c", "d"]
    shelf.get("d").open()
    assert not shelf.put("e", index())
    assert shelf.refused == 1
    shelf.get("a").close(rows["a"])
    assert shelf.put("e", index())
    assert list(shelf) == ["c", "d", "e"]


def test_a_prompt_is_replaced_only_while_nobody_uses_it(shelf):
    newer = index(900)
    assert shelf.put("b", newer)
    assert shelf.get("b") is newer
    newer.open()
    with pytest.raises(ValueError, match="open rows"):
        shelf.put("b", index())
    shelf.drop("b")
    assert shelf.get("b") is None


def test_what_has_grown_is_counted(shelf):
    before, grown = shelf.nbytes, shelf.get("c")
    grown.add(np.arange(1000, dtype=np.int32), age=1)
    shelf.count("c")
    assert shelf.nbytes > before
    assert shelf.nbytes == sum(shelf.get(prompt).nbytes for prompt in "abc")
    assert shelf.put("d", index())
    assert shelf.nbytes <= shelf.max_bytes
    assert list(shelf)[-1] == "d"


def test_nothing_larger_than_the_budget_is_taken(shelf):
    assert not shelf.put("huge", index(10_000))
    assert len(shelf) == 3
