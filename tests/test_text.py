from __future__ import annotations

from rhymed.messages import EVAL
from rhymed.text import epoch_name, readable, response_name, step_name, trained_line


def test_people_count_from_1() -> None:
    assert (step_name(0), epoch_name(0), response_name(0)) == ("step 1", "epoch 1", "#1")


def test_ids_of_evaluations_are_written_without_the_offset() -> None:
    id = "00000000000000ab/1"
    assert readable(f"takes {EVAL}/{id}, {EVAL + 12}/{id}: 0") == f"takes eval-v0/{id}, eval-v12/{id}: 0"
    same = f"3/{id}, -3/{id}, {EVAL - 1}/{id}, {EVAL} samples, folder/{EVAL}/{id}"
    assert readable(same) == same


def test_the_trainers_line_is_short_and_has_labels() -> None:
    metrics = {
        "actor/entropy": 4.0271, "actor/grad_norm": 0.9565, "actor/loss": -0.839, "actor/lr": 0.0002,
        "actor/samples": 64.0, "actor/tokens": 335.0, "mismatch_kl/mean": 7.493e-11, "reward/flat_groups": 0.25,
        "timing_s/train": 20.31, "perf/train_tokens_per_s": 31.46,
    }  # fmt: skip
    assert trained_line(metrics) == (
        "25% of the groups flat, loss -0.839, entropy 4.03, gradient norm 0.957, learning rate 0.0002,"
        " mismatch 7.5e-11, 335 tokens, 20.3 s"
    )
    assert trained_line({"reward/flat_groups": 1.0, "timing_s/train": 0.2}) == "100% of the groups flat, 0.2 s"
