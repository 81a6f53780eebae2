"""Pictures of a report: what they are about, and where on the axis a step stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.report.curves import draw

pytest.importorskip("matplotlib")

HEALTH = {
    "actor/entropy": 0.5, "actor/loss": -0.01, "actor/grad_norm": 40.0, "actor/kl": 0.02, "actor/pg_clipfrac": 0.1,
    "mismatch_kl/mean": 0.001,
}  # fmt: skip
CRITIC = {
    "critic/value_mean": 0.4,
    "critic/return_mean": 0.5,
    "critic/loss": 0.1,
    "critic/explained_variance": 0.3,
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was drawn, by file."""
    from matplotlib.figure import Figure

    drawn: dict[str, Any] = {}
    save = Figure.savefig

    def saved(figure: Figure, path: Path, **more: Any) -> None:
        drawn[path.stem] = figure
        save(figure, path, **more)

    monkeypatch.setattr(Figure, "savefig", saved)
    return drawn


def rows(steps: int, **more: float) -> list[dict[str, Any]]:
    return [{"step": step, "training/epoch": float(step // 3), **more} for step in range(steps)]


def across(figure: Any) -> list[list[float]]:
    """Where its curves have points."""
    return [list(line.get_xdata()) for axis in figure.axes for line in axis.lines if len(line.get_xdata()) > 2]


def legend(figure: Any) -> list[str]:
    found = figure.axes[0].get_legend()
    return [text.get_text() for text in found.get_texts()] if found else []


def test_steps_count_from_1_and_evaluations_by_version(tmp_path: Path, figures: dict[str, Any]) -> None:
    told = {"reward/mean": 0.5, "timing_s/train": 1.0, "rollout/tokens": 5.0}
    exams = [{"step": version, "val/sums/reward/mean": 0.5} for version in (0, 2, 4)]
    found = draw(rows(4, **told), exams, tmp_path)
    assert found is not None
    assert set(figures) == {"reward", "seconds", "store", "evaluation"}
    assert across(figures["reward"]) == [[1, 2, 3, 4]] * 2
    assert [line.get_xdata()[0] for line in figures["reward"].axes[0].lines if len(line.get_xdata()) == 2] == [3.5]
    assert across(figures["store"]) == [[1, 2, 3, 4]]
    assert figures["seconds"].axes[0].dataLim.intervalx.tolist() == [1, 4]
    assert across(figures["evaluation"]) == [[0, 2, 4]]
    assert found[0].about == "Reward, steps 1 to 4"


def test_the_health_of_training_has_its_pictures(tmp_path: Path, figures: dict[str, Any]) -> None:
    found = draw(rows(4, **HEALTH), (), tmp_path)
    assert found is not None
    titles = ["entropy, loss, gradient norm", "mismatch of engine and trainer", "KL and clip fraction"]
    assert [one.title for one in found] == [f"Training health: {title}" for title in titles]
    left, right = figures["policy"].axes
    assert [line.get_ydata()[0] for line in left.lines[:2]] == [0.5, -0.01]
    assert [line.get_ydata()[0] for line in right.lines] == [40.0], "of another size: an axis of its own"
    assert legend(figures["policy"]) == ["entropy", "loss", "gradient norm, before clipping"]
    assert figures["mismatch"].axes[0].lines[0].get_ydata()[0] == 0.001
    assert [line.get_ydata()[0] for line in figures["distance"].axes[0].lines[:2]] == [0.02, 0.1]


def test_a_tiny_number_is_written_at_its_tick(tmp_path: Path, figures: dict[str, Any]) -> None:
    told = [{**row, "mismatch_kl/mean": 7e-11 - 1e-12 * row["step"]} for row in rows(6)]
    draw(told, (), tmp_path)
    axis = figures["mismatch"].axes[0]
    assert axis.yaxis.get_offset_text().get_text() == "", "a factor above the axis is overlooked or cut off"
    ticks = {label.get_text() for label in axis.get_yticklabels()}
    assert "7e-11" in ticks


def test_the_legend_covers_no_curve(tmp_path: Path, figures: dict[str, Any]) -> None:
    draw(rows(6, **HEALTH, **CRITIC), (), tmp_path)
    for figure in (figures["policy"], figures["critic"], figures["distance"]):
        axis = figure.axes[0]
        box = axis.get_legend().get_window_extent()
        assert box.y0 >= axis.get_window_extent().y1 - 4
        assert box.y1 <= figure.bbox.y1 + 1
        assert box.x1 <= figure.bbox.x1


def test_every_picture_ends_at_the_last_step(tmp_path: Path, figures: dict[str, Any]) -> None:
    told = rows(6, **{"reward/mean": 0.5, "rollout/spec_accept_rate": 0.7, "timing_s/train": 1.0})
    told[-1]["rollout/spec_accept_rate"] = None  # a step without drafts
    draw(told, (), tmp_path)
    assert {figures[name].axes[0].get_xlim() for name in ("reward", "acceptance", "seconds")} == {(0.5, 6.5)}


def test_the_critic_has_a_picture(tmp_path: Path, figures: dict[str, Any]) -> None:
    draw(rows(4, **CRITIC), (), tmp_path)
    assert set(figures) == {"critic"}
    assert legend(figures["critic"]) == ["mean return", "mean value", "loss", "explained variance"]
    left, right = figures["critic"].axes
    assert [line.get_ydata()[0] for line in left.lines[:3]] == [0.5, 0.4, 0.1]
    assert [line.get_ydata()[0] for line in right.lines] == [0.3]


@pytest.mark.parametrize(
    ("keys", "files", "names"),
    [
        (["actor/grad_norm"], {"policy"}, ["gradient norm, before clipping"]),
        (["actor/entropy"], {"policy"}, ["entropy"]),
        (["actor/kl"], {"distance"}, ["KL to the reference model"]),
        (["mismatch_kl/mean"], {"mismatch"}, []),
        ([], set(), []),
    ],
)
def test_only_what_the_run_has_is_drawn(
    tmp_path: Path, figures: dict[str, Any], keys: list[str], files: set[str], names: list[str]
) -> None:
    draw(rows(4, **{key: HEALTH[key] for key in keys}), (), tmp_path)
    assert set(figures) == files
    assert [name for figure in figures.values() for name in legend(figure)] == names
    assert all(len(figure.axes) == 1 for figure in figures.values())
