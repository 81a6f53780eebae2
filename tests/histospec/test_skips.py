"""Which steps the drafter skips."""

from rhymed.histospec.drafter import SkipSchedule


def test_steps_pass_after_looks_that_found_nothing_and_more_of_them_each_time():
    skips, between = SkipSchedule(), []
    for _ in range(SkipSchedule.AFTER * (SkipSchedule.LONGEST + 4)):
        skips.drafted(True)
        while skips.may_skip:
            skips.skip(0.01)
        between.append(skips.take()[0])
    assert between[: SkipSchedule.AFTER - 1] == [0] * (SkipSchedule.AFTER - 1)
    assert between == sorted(between)
    assert between[-1] == SkipSchedule.LONGEST


def test_something_worth_verifying_wakes_it():
    skips = SkipSchedule()
    for _ in range(SkipSchedule.AFTER):
        skips.drafted(True)
    assert skips.may_skip
    skips.drafted(False)
    assert not skips.may_skip
    skips.drafted(True)
    assert not skips.may_skip


def test_a_pause_is_skipped_and_nothing_beyond_it():
    skips = SkipSchedule()
    skips.drafted(False, pause=3)
    for _ in range(3):
        assert skips.may_skip
        skips.skip(None)
    assert not skips.may_skip
    assert skips.take() == (3, 0.0, 0.0)


def test_one_slow_step_does_not_become_the_typical_one():
    skips = SkipSchedule()
    skips.drafted(False, pause=9)
    for seconds in (0.01, 0.01, None, 0.4, 0.02):
        skips.skip(seconds)
    skipped, took_s, typical_s = skips.take()
    assert (skipped, round(took_s, 6), typical_s) == (5, 0.44, 0.015)
    assert skips.take() == (0, 0.0, 0.0)
