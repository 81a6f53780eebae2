import json
import shutil
from pathlib import Path

from rhymed.core.run.metrics import MetricsLog


def test_a_line_a_step_also_over_a_restart_and_never_a_nan(tmp_path: Path) -> None:
    for step, value in enumerate([0.5, float("nan")]):
        log = MetricsLog(tmp_path / "metrics.jsonl")
        log.write(step, {"reward/mean": value})
        log.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    assert [row["reward/mean"] for row in rows] == [0.5, None]


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    for step in range(3):
        log.write(step, {"reward/mean": step / 4})
    log.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(0, 0.0), (1, 0.25), (2, 0.5)]


def test_a_row_that_was_on_its_way_when_the_log_was_closed_is_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(0, {"reward/mean": 1.0})
    log.close()
    log.write(1, {"reward/mean": 2.0})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]


def test_rows_after_a_file_was_removed_are_in_a_new_one(tmp_path: Path) -> None:
    """Of either kind, with its folder or without."""
    folder = tmp_path / "run"
    log = MetricsLog(folder / "metrics.jsonl", folder / "tensorboard")
    log.write(0, {"reward/mean": 0.5})
    (folder / "metrics.jsonl").unlink()
    log.write(1, {"reward/mean": 0.5})
    shutil.rmtree(folder)
    log.write(2, {"reward/mean": 0.5})
    for events in (folder / "tensorboard").iterdir():
        events.unlink()
    log.write(3, {"reward/mean": 0.5})
    log.close()
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [2, 3]
    assert len(list((folder / "tensorboard").iterdir())) == 1
