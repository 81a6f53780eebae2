"""Power cuts within a commit: the disk may have any part of what was written since the last flush, in any order.

LMDB flushes the pages of a transaction before it writes the header that makes them count. So what a cut can leave
with durability = "sync" is known without cutting anything: the file before the commit, any of its sectors as the
commit wrote them, and the old header; after the flush everything, with the old or the new header, which is one write
within one sector. Disks that acknowledge a flush and do not do it are not covered, nor is "async".
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from rhymed.core.messages import ForgetLogprobs, MarkSamples, PutPartials, PutScores, SampleId, Score
from rhymed_store.verify import verify
from tests.store.damage import PROMPTS, content, write
from tests.store.stores import PROMPT, LocalStore, new_sample

SECTOR, HEADERS = 512, 2 * 4096


def commits(folder: Path) -> list[bytes]:
    """The file before and after each of some commits, all of them flushed."""
    local = LocalStore(folder, durable=True)
    images = [(folder / "data.mdb").read_bytes()]

    def done() -> None:
        images.append((folder / "data.mdb").read_bytes())

    for step in range(6, 12):
        local.put(*(new_sample(step, index, prompt=PROMPTS[index % 3], length=500 * index) for index in range(8)))
        done()
        part = PutPartials(samples=[SampleId(step, PROMPT, 50)], starts=[0], lengths=[64])
        local.do(lambda b, part=part: local.writes.put_partials(b, part, np.arange(64, dtype="<u4").tobytes()))
        done()
        ids = [SampleId(step, PROMPTS[index % 3], index) for index in range(8)]
        scores = PutScores(scores=[Score(id=id, reward=0.5) for id in ids])
        local.do(lambda b, scores=scores: local.writes.put_scores(b, scores))
        done()
        local.do(lambda b, ids=ids: local.writes.mark(b, MarkSamples(samples=ids, state="trained")))
        done()
        local.do(lambda b, step=step: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=step - 1)))
        done()
    local.database.close()
    return images


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_cut_within_a_commit_leaves_the_state_before_or_after_it(tmp_path: Path, every: int) -> None:
    """In every commit, or in every sixth."""
    rng = random.Random(0)
    write(tmp_path / "store")
    images = commits(tmp_path / "store")
    place = tmp_path / "cut"
    place.mkdir()

    def state(image: bytes) -> dict[str, object]:
        (place / "data.mdb").write_bytes(image)
        (place / "lock.mdb").unlink(missing_ok=True)  # a machine that starts has no locks
        assert verify(place).findings == []
        return content(place)

    assert len(images) == 31
    for before, after in itertools.islice(itertools.pairwise(images), 0, None, every):
        state_before = state(before)
        longer = before + bytes(len(after) - len(before))
        changed = [
            at for at in range(HEADERS, len(after), SECTOR) if longer[at : at + SECTOR] != after[at : at + SECTOR]
        ]
        assert changed
        for share in (rng.random(), 1.0):
            cut = bytearray(longer)
            for at in changed:
                if rng.random() < share:
                    cut[at : at + SECTOR] = after[at : at + SECTOR]
            assert state(bytes(cut)) == state_before, "without its header a commit has not happened"
