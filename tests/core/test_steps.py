from __future__ import annotations

import pytest

from rhymed.core.steps import EVAL, evaluated_version, evaluation_step, is_evaluation, is_training, window


@pytest.mark.parametrize(
    ("step", "training", "evaluation"),
    [(-1, False, False), (0, True, False), (EVAL - 1, True, False), (EVAL, False, True), (EVAL + 7, False, True)],
)
def test_a_step_is_imported_trained_or_an_evaluation(step: int, training: bool, evaluation: bool) -> None:
    assert (is_training(step), is_evaluation(step)) == (training, evaluation)


def test_an_evaluation_has_one_version_and_a_training_step_those_of_its_window() -> None:
    assert [evaluated_version(evaluation_step(version)) for version in (0, 12)] == [0, 12]
    assert window(evaluation_step(12), 3) == (12, 12)
    assert (window(12, 3), window(2, 3), window(2, 0)) == ((9, 12), (0, 2), (2, 2))
