"""Which steps the drafter lets pass."""

from rhymed.histospec.doze import Doze


def test_steps_pass_after_looks_that_found_nothing_and_more_of_them_each_time():
    doze, between = Doze(), []
    for _ in range(Doze.AFTER * (Doze.LONGEST + 4)):
        doze.look(True)
        while doze.asleep:
            doze.let_pass(0.01)
        between.append(doze.take()[0])
    assert between[: Doze.AFTER - 1] == [0] * (Doze.AFTER - 1)
    assert between == sorted(between)
    assert between[-1] == Doze.LONGEST


def test_something_worth_verifying_wakes_it():
    doze = Doze()
    for _ in range(Doze.AFTER):
        doze.look(True)
    assert doze.asleep
    doze.look(False)
    assert not doze.asleep
    doze.look(True)
    assert not doze.asleep


def test_a_pause_is_dozed_through_and_not_beyond():
    doze = Doze()
    doze.look(False, pause=3)
    for _ in range(3):
        assert doze.asleep
        doze.let_pass(None)
    assert not doze.asleep
    assert doze.take() == (3, 0.0, 0.0)


def test_one_slow_step_does_not_become_the_typical_one():
    doze = Doze()
    doze.look(False, pause=9)
    for seconds in (0.01, 0.01, None, 0.4, 0.02):
        doze.let_pass(seconds)
    passed, took_s, typical_s = doze.take()
    assert (passed, round(took_s, 6), typical_s) == (5, 0.44, 0.015)
    assert doze.take() == (0, 0.0, 0.0)
