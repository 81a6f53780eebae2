"""`python -m benchmarks train`: its cells train, and what does not fit or fails is a row with a reason."""

from __future__ import annotations

import pytest

from benchmarks.gpu.trainer import VARIANTS, Cell, batch_of, estimate, run, step


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("responses", [1, 3])
def test_a_cell_trains_one_step(variant: str, responses: int) -> None:
    if variant == "lora":
        pytest.importorskip("peft")
    cell = Cell(128, "tiny", responses=responses, layers=1, vocabulary=64, steps=1, **VARIANTS[variant])
    found = step(cell, "cpu")
    assert found["tokens"] == 128
    assert len(found["step_s"]) == 1
    assert found["peak_gib"] >= found["before_gib"] > 0


def test_rows_have_their_tokens() -> None:
    batch = batch_of(64, 10, [20, 30], rows=3)
    assert [bound[-1] - bound[0] for bound in batch.bounds] == [60] * 3


@pytest.mark.thorough
def test_what_does_not_fit_or_fails_is_a_row_and_the_others_train(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GiB are free" in step(Cell(1 << 32), "cpu")["skipped"]
    from benchmarks.gpu import trainer

    real = trainer.build

    def build(cell: Cell, device: str) -> object:
        if cell.checkpointing:
            raise MemoryError("no memory is left")
        return real(cell, device)

    monkeypatch.setattr(trainer, "build", build)
    found = run(True, tokens=[64], methods=["checkpointing", "plain"])
    assert not found["good"]
    assert [cell is None for cell in found["cells"].values()] == [True, True, False, False]


def test_32k_tokens_of_151k_words_are_estimated_below_16_gib() -> None:
    cell = Cell(32768, vocabulary=151936, checkpointing=True)
    assert estimate(cell) < 16 << 30 < estimate(Cell(32768, vocabulary=151936))


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(SystemExit, match="no such variant: fast; there are plain"):
        run(True, methods=["fast"])
