from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rhymed.report.gantt import draw, figure, shares
from rhymed.run.timeline import Event, Span, Timeline
from rhymed.service.activities import ACTIVITIES, HEX


def span(t: float, worker: str = "rollout-0", s: float = 1.0, **inside: float) -> Span:
    return Span(t=t, worker=worker, role="rollout", s=s, inside=inside)


def column(name: str) -> int:
    return ACTIVITIES["rollout"].index(name)


def test_shares_of_slices() -> None:
    spans = [span(11, verify=0.75, idle=0.25), span(13, s=2.0, decode=2.0), span(15, idle=1.0)]
    found = shares(spans, np.array([9.0, 10.0, 10.5, 11.0, 12.5, 13.5, 14.0, 16.0]))
    assert found[:, column("verify")] == pytest.approx([0, 0.75, 0.75, 0, 0, 0, 0])
    assert found[:, column("decode")] == pytest.approx([0, 0, 0, 1, 0.5, 0, 0])
    assert found.sum(axis=1) == pytest.approx([0, 1, 1, 1, 0.5, 0, 0.5]), "white where nothing is known"


def test_spans_that_overlap_count_once() -> None:
    spans = [span(11, s=2.0, verify=2.0), span(11.5, s=1.5, decode=1.5), span(11.4, s=0.1, idle=0.1)]
    found = shares(spans, np.array([9.0, 11.0, 11.5, 12.0]))
    assert found.sum(axis=1) == pytest.approx([1, 1, 0])
    assert found[1, column("decode")] == pytest.approx(1)


def test_a_late_heartbeat_is_no_gap() -> None:
    spans = [span(11, verify=1.0), span(12.2, verify=0.5, idle=0.5), span(14, verify=1.0)]
    found = shares(spans, np.array([10.0, 11.0, 11.2, 12.2, 13.0, 14.0]))
    assert found.sum(axis=1) == pytest.approx([1, 1, 1, 0, 1])
    assert found[:, column("idle")] == pytest.approx([0, 0.5, 0.5, 0, 0])


def story(workers: int, seconds: int) -> Timeline:
    spans = [
        span(1e9 + t, f"rollout-{number}", verify=0.6, idle=0.4)
        for t in range(1, seconds + 1)
        for number in range(workers)
    ]
    trained = [Event(t=1e9 + t, event="trained", step=t // 5) for t in range(5, seconds, 5)]
    others = [
        Event(t=1e9 + 3, event="lost", worker="rollout-0"),
        Event(t=1e9 + 4, event="joined", worker="rollout-0"),
        Event(t=1e9 + 4, event="joined", worker="unheard"),
        Event(t=1e9 + 6, event="evaluated", step=1),
    ]
    return Timeline(spans, sorted([*trained, *others], key=lambda event: event.t))


@pytest.mark.parametrize(("workers", "seconds"), [(2, 40), (64, 3)])
def test_a_picture(tmp_path: Path, workers: int, seconds: int) -> None:
    image = pytest.importorskip("matplotlib.image")
    path = draw(story(workers, seconds), tmp_path / "gantt.png", title="a run")
    assert path is not None
    pixels = image.imread(path)[:, :, :3]
    assert 200 < pixels.shape[0] < 2000
    assert pixels.shape[1] == 1560
    wanted = np.array([int(HEX["verify"][at : at + 2], 16) / 255 for at in (1, 3, 5)])
    rows = (np.abs(pixels - wanted).max(axis=2) < 0.01).any(axis=1)
    assert (np.diff(rows.astype(int)) == 1).sum() >= workers, "a bar of its own for every worker"


def test_marks_and_ends_of_steps() -> None:
    pytest.importorskip("matplotlib")
    axis = figure(story(2, 40)).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["rollout-0", "rollout-1"]
    places = {line.get_marker(): line.get_xydata().tolist() for line in axis.lines}
    assert places == {"x": [[3, 0.5]], ">": [[4, 0.5]], "*": [[6, 0]]}
    (ends,) = axis.collections
    assert [path.vertices[0][0] for path in ends.get_paths()] == list(range(5, 40, 5))
    assert [text.get_text() for text in axis.texts] == ["60% busy"] * 2
    (top,) = axis.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == [str(number) for number in range(2, 9)]


def test_of_many_steps_every_second_or_third_has_its_number_from_1_on() -> None:
    pytest.importorskip("matplotlib")
    trained = [Event(t=1e9 + 1 + step, event="trained", step=step) for step in range(60)]
    (top,) = figure(Timeline(story(1, 60).spans, trained)).axes[0].child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == [str(number) for number in range(3, 61, 3)]


def test_nothing_heard_is_no_picture(tmp_path: Path) -> None:
    assert draw(Timeline([], [Event(t=1, event="begun")]), tmp_path / "gantt.png") is None
    assert not list(tmp_path.iterdir())
