"""Which checkpoint a backup needs, and which head may have a run: pure rules."""

from __future__ import annotations

import msgspec
import pytest

from rhymed.core.run import lease as leases
from rhymed.core.run.lease import Lease
from rhymed.records.remote.place import Backup, File, fitting, needed


def backup(end: int, forgotten: int, number: int = 1) -> Backup:
    files = {"store/data.mdb": File(3, ["a", "b"])}
    return Backup(number=number, ids=["a"], steps=end, end=end, forgotten=forgotten, at=0.0, files=files)


@pytest.mark.parametrize(
    ("end", "forgotten", "steps", "fits"),
    [
        (4, 0, [], 0),  # before the first checkpoint
        (4, 0, [10], 0),  # the checkpoint is newer than the samples
        (24, 10, [10, 20, 30], 20),
        (20, 10, [10, 20], 20),
        (24, 10, [10], 10),
        (24, 20, [10, 30], None),
        (24, 20, [], None),
    ],
)
def test_a_backup_continues_with_a_checkpoint_that_its_samples_reach_and_its_logprobs_follow(
    end: int, forgotten: int, steps: list[int], fits: int | None
) -> None:
    assert fitting(backup(end, forgotten), steps) == fits


def test_a_checkpoint_of_a_step_that_was_generated_while_the_backup_was_made_does_not_fit() -> None:
    made = msgspec.structs.replace(backup(3, 0), steps=2)  # the store has some samples of the third step
    assert fitting(made, [3]) == 0, "three steps are trained again, on the same samples"
    assert fitting(msgspec.structs.replace(made, forgotten=3), [3]) is None


def test_what_a_backup_needs_is_kept_besides_the_newest() -> None:
    steps = [10, 20, 30, 40]
    assert needed([], steps, 2) == {30, 40}
    assert needed([backup(24, 10), backup(34, 20, 2)], steps, 1) == {20, 30, 40}
    assert needed([backup(4, 0)], steps, 1) == {40}


MINE = Lease(owner="me", host="here", process=1, folder="/runs/one", at=1000.0)
OTHER = Lease(owner="other", host="there", process=2, folder="/runs/two", at=990.0, step=7)


@pytest.mark.parametrize(
    ("found", "take_over", "words"),
    [
        (None, False, ""),
        (MINE, False, ""),
        (leases.decode(leases.encode(MINE)), False, ""),
        (Lease(owner="other", host="x", process=2, folder="/", at=999.0, released=True), False, ""),
        (OTHER, False, "another head has this run: process 2 on there, folder /runs/two; last seen 10s ago, after 7"),
        (OTHER, True, "end it there, or, if that machine is gone, wait 60 s and add --take-over"),
        (Lease(owner="other", host="x", process=2, folder="/", at=900.0), False, "add --take-over; if it comes back"),
        (Lease(owner="other", host="x", process=2, folder="/", at=900.0), True, ""),
        (
            Lease(owner="me", host="there", process=1, folder="/runs/one", at=990.0),
            False,
            "another head has this run",
        ),
    ],
)
def test_only_the_lease_of_a_head_that_is_gone_may_be_taken_over(
    found: Lease | None, take_over: bool, words: str
) -> None:
    why = leases.refusal(found, MINE, 60.0, take_over=take_over)
    assert words in why
    assert bool(why) == bool(words)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"owner": 1}', b"\xff"])
def test_a_torn_lease_is_none(content: bytes | None) -> None:
    assert leases.decode(content) is None
