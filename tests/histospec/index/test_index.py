import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhymed.histospec.drafts.calibration import SHARES, TRUSTS, Calibration, cell
from rhymed.histospec.drafts.trust import Trust
from rhymed.histospec.drafts.types import Matching, Noise
from rhymed.histospec.drafts.voting import MAX_MATCHES, WALK, draft
from rhymed.histospec.index import arena
from rhymed.histospec.index.index import Index, extend
from rhymed.histospec.index.recent import ORDERS, Recent
from rhymed.histospec.sampling.noise import draw
from tests.histospec.index.naive import Naive


def tokens(*ids):
    return np.array(ids, np.int32)


def proposed(indexes, rows, fresh=None, limit=16, settings=None, trust=None, noise=None, recent=None):
    fresh = fresh or [()] * len(rows)
    offsets = np.cumsum([0, *map(len, fresh)]).astype(np.int32)
    flat = np.array([t for part in fresh for t in part], np.int32)
    limits = np.full(len(rows), limit, np.int32)
    settings = settings or Matching(floor=0.0)
    learned = Calibration(), trust or Trust()
    return draft(indexes, tokens(*rows), flat, offsets, limits, settings, *learned, noise, recent and recent.index)


def drafted(drafts, i=0):
    return drafts.tokens[i, : drafts.lengths[i]].tolist()


def slipped(start, stop, at):
    """A piece of one long text, with another token somewhere."""
    return [99 if position == at else position for position in range(start, stop)]


text = st.one_of(
    st.lists(st.integers(0, 2), max_size=40),
    st.builds(slipped, st.integers(0, 12), st.integers(0, 30), st.integers(0, 30)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), text, st.integers(1, 3)),
        st.tuples(st.just("open")),
        st.tuples(st.just("extend"), st.integers(0, 5), text),
        st.tuples(st.just("close"), st.integers(0, 5)),
        st.tuples(st.just("draft")),
    ),
    min_size=1,
    max_size=14,
)


of_other_prompts = st.lists(text.filter(len), max_size=3)


@given(text, steps, of_other_prompts, st.sampled_from([(8, 2), (5, 3), (4, 1), (7, 3)]), st.booleans(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_drafts_are_those_of_the_naive_index(prompt, steps, others, orders, backoff, keyed):
    """Whatever was added, opened, extended, drafted and closed: the same places, votes and drafts."""
    recent, elsewhere = Recent(capacity=1024), Naive((), ORDERS)
    for other in others:
        recent.add(tokens(*other))
        elsewhere.add(other, 1)
    index = Index(tokens(*prompt), orders=orders)
    naive = Naive(prompt, orders, None if backoff else elsewhere)
    settings, trust = Matching(floor=0.0, backoff=backoff), Trust()
    rows, lost = [], set()  # rows that met a limit keep other places from then on
    for step in [*steps, ("draft",)]:
        if step[0] == "add":
            index.add(tokens(*step[1]), step[2])
            naive.add(*step[1:])
        elif step[0] == "open":
            rows.append(index.open())
            assert rows[-1] == naive.open()
        elif rows and step[0] == "extend":
            row = rows[step[1] % len(rows)]
            extend([index], tokens(row), tokens(*step[2]), tokens(0, len(step[2])))
            naive.extend(row, step[2])
        elif rows and step[0] == "close":
            row = rows.pop(step[1] % len(rows))
            index.close(row)
            naive.close(row)
        elif rows and step[0] == "draft":
            keys = [row + 7 if keyed else None for row in rows]
            positions = np.array([len(naive.texts[row]) - 1 for row in rows], np.int64)
            noise = Noise(np.array([row + 7 for row in rows], np.uint64), positions, np.full(len(rows), keyed))
            drafts = proposed([index] * len(rows), rows, None, 16, settings, trust, noise, recent)
            known = settings, trust
            lost |= {
                row
                for i, row in enumerate(rows)
                if row not in lost and not same(naive, row, drafts, i, *known, keys[i])
            }
            trust.observe(drafts.votes, drafts.tokens[:, 0] * (drafts.lengths > 0))
    assert index.tokens == sum(len(text) - 1 for text in naive.texts)


def same(naive, row, drafts, i, settings, trust, key):
    """Unless a limit on what is looked at was reached (answers False), up to where two continuations tie."""
    end = len(naive.texts[row]) - 1
    elsewhere = naive.recent.written if naive.recent else ()
    places = [*naive.written, *((-other, place) for other, place in elsewhere if other)]
    alike = sum(naive.matched(row, end, *at) > 0 for at in places)
    expected = naive.draft(row, 16, settings, trust, key)
    if alike > WALK or naive.voted > MAX_MATCHES:
        return False
    survival, table = 1.0, Calibration().table
    for depth, (token, scores, share, count, trusted) in enumerate(expected):
        first, *others = sorted(scores.values(), reverse=True)
        if others and others[0] > first - 1e-3:
            return True
        assert drafts.lengths[i] > depth
        assert drafts.tokens[i, depth] == token
        edges = [*(abs(SHARES - share)), *(abs(TRUSTS - trusted))]
        if min(edges) > 1e-5:
            assert drafts.evidence[i, depth] == cell(trusted, share, count, 0)
        survival *= table[drafts.evidence[i, depth]]
        assert drafts.survival[i, depth] == pytest.approx(survival, rel=1e-4)
    assert drafts.lengths[i] == len(expected)
    return True


def test_a_new_request_is_drafted_from_the_start_of_earlier_responses():
    index = Index(tokens(1, 2, 3))
    index.add(tokens(10, 11, 12, 13), age=1)
    assert drafted(proposed([index], [index.open()])) == [10, 11, 12, 13]


def test_siblings_draft_for_each_other_while_they_run():
    index = Index(tokens(1))
    a, b = index.open(), index.open()
    drafts = proposed([index, index], [a, b], [(5, 6, 7, 8), (5, 6)])
    assert drafted(drafts, 0) == []
    assert drafted(drafts, 1) == [7, 8]
    index.close(a)
    assert drafted(proposed([index], [b], [(7,)])) == [8]


def test_a_slip_does_not_end_the_draft():
    index = Index(tokens(1))
    index.add(np.arange(100, 140, dtype=np.int32), age=1)
    row = index.open()
    assert drafted(proposed([index], [row], [(*range(100, 110), 7)], limit=4)) == [111, 112, 113, 114]


def test_the_request_itself_and_the_prompt_are_sources():
    index = Index(tokens(20, 21, 22, 23))
    row = index.open()
    assert drafted(proposed([index], [row], [(1, 2, 3, 20, 21)])) == [22, 23]
    assert drafted(proposed([index], [row], [(9, 1, 2)], limit=2)) == [3, 20]


def test_more_votes_win():
    index = Index(tokens(1))
    for response in ((5, 7), (5, 7), (6, 8)):
        index.add(tokens(*response), age=1)
    assert drafted(proposed([index], [index.open()]))[0] == 5


def test_a_place_that_was_alike_before_a_gap_outvotes_one_that_was_not():
    index = Index(tokens(1))
    index.add(np.arange(100, 140, dtype=np.int32), age=1)
    for _ in range(3):
        index.add(tokens(50, 112, 113, 7), age=1)
    row = index.open()
    assert drafted(proposed([index], [row], [(1, *range(101, 111), 9, 112, 113)], limit=1)) == [114]


def test_what_kind_of_place_is_right_is_learned():
    """The request's own text and another response disagree, and one of them is right time and again."""
    for winner in (7, 8):
        trust = Trust()
        for _ in range(60):
            index = Index(tokens(1))
            index.add(tokens(50, 4, 5, 7), age=1)
            drafts = proposed([index], [index.open()], [(60, 4, 5, 8, 61, 4, 5)], limit=1, trust=trust)
            trust.observe(drafts.votes, tokens(winner))
        assert drafted(drafts) == [winner]


def test_with_known_noise_a_draft_is_what_the_sampler_would_draw():
    """Two continuations as often as each other: the noise decides, as it will when the engine draws."""
    index, count = Index(tokens(1)), 400
    for token in (5, 6):
        index.add(tokens(token, 9), age=1)
    rows = [index.open() for _ in range(count)]
    keys, positions = np.arange(count, dtype=np.uint64), np.full(count, 1, np.int64)
    drafts = proposed([index] * count, rows, noise=Noise(keys, positions, np.ones(count, bool)))
    logits = np.full(10, -30.0, np.float32)
    logits[[5, 6]] = np.log([0.5, 0.5])
    drawn = [draw(logits, key, 1) for key in range(count)]
    assert drafts.tokens[:, 0].tolist() == drawn
    assert 0.4 < np.mean(np.array(drawn) == 5) < 0.6
    sure = drafts.survival[:, 0]
    logits[[5, 6]] = np.log([0.7, 0.3])
    right = np.array([draw(logits, key, 1) for key in range(count)]) == drafts.tokens[:, 0]
    assert right.mean() > 0.8  # the more frequent token is right in 0.7 of all cases
    assert sure[right].mean() > sure[~right].mean() + 0.05


def test_the_papers_rule_sees_the_last_epoch_only():
    index = Index(tokens(1), orders=(7, 3))
    index.add(tokens(5, 6, 7, 8, 9), age=2)
    row = index.open()
    assert drafted(proposed([index], [row], settings=Matching(backoff=True))) == []
    index.add(tokens(5, 6, 7, 8, 10), age=1)
    assert drafted(proposed([index], [row], [(5, 6, 7)], settings=Matching(backoff=True, floor=0.0))) == [8, 10]


def test_nothing_is_drafted_past_an_end_nor_past_a_limit():
    index = Index(tokens(1))
    index.add(tokens(5, 6, 7, 0), age=1)
    index.add(tokens(0, 5), age=1)
    row = index.open()
    assert drafted(proposed([index], [row], [(5, 6)])) == [7, 0]
    assert drafted(proposed([index], [row], limit=1)) == [7]
    assert drafted(proposed([index], [row], limit=0)) == []


def test_ids_out_of_range_are_refused_and_nothing_is_appended():
    index = Index(tokens(1), vocabulary=100)
    with pytest.raises(ValueError, match="100 at position 1"):
        index.add(tokens(5, 100), age=1)
    a, b = index.open(), index.open()
    with pytest.raises(ValueError, match="-1 at position 0"):
        extend([index, index], tokens(a, b), tokens(5, -1), tokens(0, 1, 2))
    assert index.tokens == 1, "the prompt alone"
    with pytest.raises(ValueError, match="id -7"):
        Index(tokens(-7))
    with pytest.raises(ValueError, match="age"):
        index.add(tokens(1), age=0)


def test_only_open_rows_grow():
    index = Index(tokens(1))
    row = index.open()
    index.close(row)
    with pytest.raises(ValueError, match="not open"):
        index.close(row)
    for wrong in (row, 0, 99, -1):
        with pytest.raises(ValueError, match="not open"):
            extend([index], tokens(wrong), tokens(5), tokens(0, 1))


def test_growth_changes_no_draft_and_leaves_snapshots_alone():
    random = np.random.default_rng(0)
    index, roomy = Index(tokens(1)), Index(tokens(1), expected=200_000)
    rows = [(index.open(), roomy.open()) for _ in range(40)]
    snapshot = index.array
    copy = snapshot.copy()
    for _ in range(60):
        parts = [random.integers(0, 6, random.integers(0, 50)).tolist() for _ in rows]
        small = proposed([index] * len(rows), [a for a, _ in rows], parts)
        large = proposed([roomy] * len(rows), [b for _, b in rows], parts)
        for i in range(len(rows)):
            assert drafted(small, i) == drafted(large, i)
    assert index.array is not snapshot
    assert index.tokens == roomy.tokens
    header = slice(0, arena.HEADER)  # the snapshot was written until it was full, and not since
    assert snapshot[header][arena.SLOTS] == copy[header][arena.SLOTS]
    assert snapshot[arena.USED] <= snapshot[arena.SLOTS]


@pytest.mark.parametrize("name", ["one token", "fibonacci", "random", "empty"])
def test_hard_texts_cost_no_more_than_others(name):
    """100,000 tokens; the time limit of a test is the bound: nothing here is quadratic."""
    word = [0]
    if name == "fibonacci":
        a, b = [0], [0, 1]
        while len(b) < 100_000:
            a, b = b, b + a
        word = b[:100_000]
    elif name == "one token":
        word = [7] * 100_000
    elif name == "random":
        word = np.random.default_rng(1).integers(0, 50, 100_000).tolist()
    else:
        word = []
    index = Index(tokens(), orders=(8, 2))
    index.add(tokens(*word), age=1)
    row = index.open()
    for at in range(0, min(len(word), 5000), 10):
        drafts = proposed([index], [row], [word[at : at + 10]])
        assert (np.diff(drafts.survival[0, : drafts.lengths[0]]) <= 0).all()
    assert drafted(proposed([index], [row])) == word[:16] if not word else True
    assert index.tokens == len(word) + min(len(word), 5000)


def test_bytes_a_token_stay_small():
    index = Index(tokens(), expected=10_000)
    index.add(np.arange(10_000, dtype=np.int32), age=1)
    assert index.nbytes / index.tokens < 26
