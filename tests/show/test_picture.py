from pathlib import Path
from typing import Any

import pytest

from rhymed.show.summary import MOST_LINES, draw


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was drawn, as matplotlib has it."""
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    save = Figure.savefig

    def saved(figure: Figure, *arguments: Any, **more: Any) -> None:
        drawn.append(figure)
        save(figure, *arguments, **more)

    monkeypatch.setattr(Figure, "savefig", saved)
    return drawn


def rows(steps: int, epoch: int, **more: Any) -> list[dict[str, Any]]:
    """`epoch` steps each."""
    return [
        {"step": step, "training/epoch": float(step // epoch), "reward/mean": 0.5, **more} for step in range(steps)
    ]


def labels(figure: Any) -> list[str]:
    return [axis.get_ylabel() for axis in figure.axes]


def upright(axis: Any) -> list[float]:
    """Where it has vertical lines."""
    return [
        line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2
    ]


def test_drafting_has_a_panel_where_there_was_any(tmp_path: Path, figures: list[Any]) -> None:
    told = {"rollout/spec_drafted": 4.0, "rollout/spec_accept_length": 2.5, "rollout/spec_net_speedup": 1.5}
    for more in (told, {}, dict.fromkeys(told, 0.0)):
        path = draw(rows(4, 2, **more), tmp_path / "curves.png", title="t")
        assert path is not None
        assert path.read_bytes().startswith(b"\x89PNG")
    with_drafts, without, idle = figures
    assert labels(with_drafts) == ["reward", "response tokens", "plain = 1", "seconds"]
    assert [list(line.get_ydata())[:1] for line in with_drafts.axes[2].lines[1:3]] == [[2.5], [1.5]]
    assert labels(without) == labels(idle) == ["reward", "response tokens", "seconds"]


def test_epochs_begin_at_thin_lines_unless_they_would_cover_all(tmp_path: Path, figures: list[Any]) -> None:
    draw(rows(7, 3), tmp_path / "few.png", title="t")
    draw(rows(MOST_LINES + 2, 1), tmp_path / "many.png", title="t")
    assert all(upright(axis) == [3.5, 6.5] for axis in figures[0].axes)
    assert not any(upright(axis) for axis in figures[1].axes)


def test_values_that_are_missing_are_gaps(tmp_path: Path, figures: list[Any]) -> None:
    some = [*rows(3, 3), {"step": 3, "reward/mean": None}]
    assert draw(some, tmp_path / "gaps.png", title="t", evaluations=[{"step": 2, "val/a/acc/mean@2": 0.5}])
    assert "a/acc/mean@2" in [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
