"""`rhymed bench train`: its cells train, and what does not fit is left out with a reason."""

from __future__ import annotations

import pytest

from rhymed.bench.policy.memory import VARIANTS, Cell, estimate, measure, run, step


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_cell_trains_one_step(variant: str, shared: bool) -> None:
    if variant == "lora":
        pytest.importorskip("peft")
    found = step(Cell(128, 64, variant, shared, layers=1, device="cpu"))
    assert found["peak_gib"] >= found["before_gib"] > 0


def test_what_does_not_fit_is_left_out() -> None:
    assert "GiB are free" in measure(Cell(1 << 32, 49152, "plain", device="cpu"))["skipped"]


def test_32k_tokens_of_151k_words_are_estimated_below_16_gib() -> None:
    assert estimate(Cell(32768, 151936, "checkpointing")) < 16 << 30 < estimate(Cell(32768, 151936, "plain"))


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(SystemExit, match="no such variant: fast; there are plain"):
        run(True, methods=["fast"])
