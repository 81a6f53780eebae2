import numpy as np
import pytest

from rhymed.histospec.index.index import Index, IndexCache


def index(size=1000):
    made = Index(np.zeros(0, np.int32), expected=size)
    made.add(np.arange(size, dtype=np.int32), age=1)
    return made


@pytest.fixture
def cache():
    made = IndexCache(3 * index().nbytes)
    for prompt in "abc":
        assert made.put(prompt, index())
    yield made
    assert made.nbytes <= made.max_bytes


def test_the_least_recently_used_goes_first(cache):
    cache.get("a")
    assert cache.put("d", index())
    assert list(cache) == ["c", "a", "d"]


def test_what_is_in_use_stays(cache):
    rows = {prompt: cache.get(prompt).open() for prompt in "ac"}
    assert cache.put("d", index())
    assert list(cache) == ["a", "c", "d"]
    cache.get("d").open()
    assert not cache.put("e", index())
    cache.get("a").close(rows["a"])
    assert cache.put("e", index())
    assert list(cache) == ["c", "d", "e"]


def test_a_prompt_is_replaced_only_while_nobody_uses_it(cache):
    newer = index(900)
    assert cache.put("b", newer)
    assert cache.get("b") is newer
    newer.open()
    with pytest.raises(ValueError, match="open sequences"):
        cache.put("b", index())
    cache.drop("b")
    assert cache.get("b") is None


def test_what_has_grown_is_counted(cache):
    before, grown = cache.nbytes, cache.get("c")
    grown.add(np.arange(1000, dtype=np.int32), age=1)
    cache.measure("c")
    assert cache.nbytes > before
    assert cache.nbytes == sum(cache.get(prompt).nbytes for prompt in "abc")
    assert cache.put("d", index())
    assert cache.nbytes <= cache.max_bytes
    assert list(cache)[-1] == "d"


def test_nothing_larger_than_the_budget_is_taken(cache):
    assert not cache.put("huge", index(10_000))
    assert len(list(cache)) == 3
