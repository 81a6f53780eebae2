import io
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from rhymed.core.config import Config, Run
from rhymed.core.messages import EVAL, Queues, StepRow, WorkerRow
from rhymed.core.run.layout import layout_of
from rhymed.core.run.timeline import Event, Times, Writer
from rhymed.core.style import sparkline
from rhymed.core.text import evaluation_lines
from rhymed.show.top.screen import picture
from rhymed.show.top.state import Connection, Shown
from rhymed.start.launch.screen import Screen, Starting, heading, line


def queues(step: int, **metrics: float) -> Queues:
    worker = WorkerRow(
        worker="rollout-0",
        role="rollout",
        host="here",
        pid=1,
        slots=64,
        version=step,
        phase="decode",
        silent_s=0.2,
        holding=[],
        stats={"rollout/tokens_per_s": 310.0},
    )
    row = StepRow(step=step, states={"running": 48, "waiting": 16}, groups_ready=0, groups=8, open_s=3.0)
    return Queues(
        run="quickstart",
        uptime_s=10.0,
        version=step,
        step=step,
        steps=30,
        finished=False,
        queues={"running": 48, "waiting": 16},
        oldest_s={},
        workers=[worker],
        open_steps=[row],
        metrics=metrics,
    )


def glanced(seen: Queues | None, width: int = 100, height: int = 40, **more: object) -> str:
    """The live screen of one snapshot, or of several of a list's."""
    shown = Shown(**{"queues": seen, "connection": Connection("live" if seen else "waiting", 0.0), **more})  # type: ignore[arg-type]
    if seen is not None:
        shown.history.add(seen)
    lines = picture(shown, width, height, 12.0)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    return "\n".join(line.plain for line in lines)


def test_the_live_screen_has_step_queues_processes_curve_and_the_last_step() -> None:
    metrics = {"reward/mean": 0.25, "rollout/tokens_per_s": 310.0, "rollout/spec_accept_length": 2.414}
    seen = queues(3, **metrics)
    shown = glanced(seen, times=Times(65.0, 720.0), notices=["0:10 rollout-0 ended"])
    head, *rest = shown.splitlines()
    for fact in ("quickstart", "step 3/30", "v3", "1m05s elapsed, about 12 min left", "live"):
        assert fact in head
    row = next(line for line in rest if line.startswith("▶ rollout-0"))
    assert {"310", "decode", "v3"} <= set(row.split())
    for fact in ("48 running", "reward 0.250", "tok/s 310", "tok/fwd 2.41", "rollout-0 ended"):
        assert fact in shown
    assert "tok/fwd" not in glanced(queues(3, **{"reward/mean": 0.25}))
    assert any("▄" in line and line.startswith("reward") for line in rest), "the curve"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 8), (20, 3), (1, 1)])
@pytest.mark.parametrize("workers", [0, 1, 500])
def test_the_live_screen_fits_every_terminal(size: tuple[int, int], workers: int) -> None:
    one = queues(3).workers[0]
    rows = [msgspec.structs.replace(one, worker=f"rollout-{number}") for number in range(workers)]
    busy = {"workers": rows, "troubles": ["the disk is full"] * 9, "val": {"val/a/reward/mean": 0.5}}
    absent = Starting(Config(), 0.0).update(None, 7.0)
    shown = glanced(msgspec.structs.replace(queues(3), **busy), *size, absent=absent, notices=["x" * 300] * 4)
    if size[0] >= 80:
        assert "waiting: the disk is full" in shown
        assert workers < 500 or "more; rhymed queues shows all" in shown


@pytest.mark.parametrize(
    ("state", "reported"), [("waiting", "asking the broker, 12s"), ("silent", "no answer for 12s")]
)
def test_a_silent_broker_is_on_the_live_screen(state: str, reported: str) -> None:
    seen = queues(1) if state == "silent" else None
    assert reported in glanced(seen, connection=Connection(state, 0.0))  # type: ignore[arg-type]


def test_plain_output_has_one_line_a_step_and_never_repeats_one(tmp_path: Path) -> None:
    config = Config(run=Run(folder=str(tmp_path)))
    out = Console(file=io.StringIO(), width=120)
    with Screen(config, layout_of(config), plain=True, console=out) as screen:
        screen.show(None)
        screen.show(queues(0))
        for _ in range(3):
            screen.show(queues(1, **{"reward/mean": 0.125}))
        screen.report("reward-0 ended (signal SIGKILL)")
        screen.show(queues(2, **{"reward/mean": 0.5}))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[:2] for line in lines if line.startswith(("1/", "2/"))] == [
        ["1/30", "0.125"],
        ["2/30", "0.500"],
    ]
    assert "-- reward-0 ended (signal SIGKILL)" in lines
    assert any("rollout-0: decode" in line for line in lines)


def test_a_jump_of_the_mismatch_is_said_once(tmp_path: Path) -> None:
    config = Config(run=Run(folder=str(tmp_path)))
    out = Console(file=io.StringIO(), width=120)
    with Screen(config, layout_of(config), plain=True, console=out) as screen:
        for step, mismatch in enumerate([0.001, 0.3, 0.3, 0.001, 0.2], 1):
            screen.show(queues(step, **{"reward/mean": 0.5, "mismatch_kl/mean": mismatch}))
    warnings = [text for text in out.file.getvalue().splitlines() if "WARNING mismatch_kl" in text]  # type: ignore[attr-defined]
    assert ["0.3000" in warnings[0], "0.2000" in warnings[1], len(warnings)] == [True, True, 2]


@pytest.mark.parametrize("plain", [True, False])
def test_steps_that_teach_nothing_are_reported_when_they_begin(tmp_path: Path, plain: bool) -> None:
    config = Config(run=Run(folder=str(tmp_path)))
    out = Console(file=io.StringIO(), width=200, force_terminal=not plain)
    good = {"reward/mean": 0.5, "actor/grad_norm": 0.3, "actor/samples": 8.0, "actor/skipped_updates": 0.0}
    steps = [
        good,
        good | {"actor/grad_norm": 0.0, "actor/rejected": 1.0},
        good | {"actor/grad_norm": 0.0, "actor/rejected": 1.0},
        good | {"actor/grad_norm": 0.0, "reward/flat_groups": 1.0},
        good | {"actor/rejected": 0.2},
        good | {"actor/skipped_updates": 1.0},
    ]
    with Screen(config, layout_of(config), plain=plain, console=out) as screen:
        for step, metrics in enumerate(steps, 1):
            screen.show(queues(step, **metrics))
        reported = [event.partition("WARNING ")[2] for event in screen._events]
    assert reported == [
        "step 2: every token was left out by trainer.correction or trainer.off_policy_mask",
        "step 4: the gradient was 0, because all rewards of each group are equal",
        "step 6: updates were skipped, because loss or gradient was not finite",
    ]
    assert out.file.getvalue().count("step 2: every token was left out") >= 1  # type: ignore[attr-defined]


def test_a_flat_curve_is_a_flat_sparkline() -> None:
    assert sparkline([1.0, 1.0]) == "▄▄"
    assert sparkline([0.0, 1.0]) == "▁█"


def test_an_evaluation_is_a_line_a_dataset_once(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    config = Config(run=Run(folder=str(tmp_path)))
    screen = Screen(config, layout_of(config), plain=True, console=console)
    graded = {"val/version": 2.0, "val/sums/acc/mean@2": 0.5, "val/sums/acc/pass@2": 0.75, "val/sums/prompts": 4.0}
    now = msgspec.structs.replace(queues(2), val=graded)
    screen.show(now)
    screen.show(now)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("eval v2   sums   mean@2 0.500   pass@2 0.750") == 1
    open_row = StepRow(step=EVAL + 2, states={"running": 3}, groups_ready=1, groups=4, open_s=1.0)
    live = glanced(msgspec.structs.replace(now, open_steps=[open_row]))
    assert "eval v2" in live
    assert "sums   mean@2 0.500   pass@2 0.750" in live


def test_an_evaluation_tells_what_was_dropped_even_when_nothing_is_left() -> None:
    some = {"val/sums/dropped": 3.0, "val/sums/acc/mean@2": 0.5, "val/all/dropped": 0.0, "val/all/acc/mean@2": 1.0}
    assert evaluation_lines(some) == ["sums   mean@2 0.500   dropped 3", "all   mean@2 1.000"]
    assert evaluation_lines({"val/version": 0.0, "val/sums/prompts": 0.0, "val/sums/dropped": 8.0}) == [
        "sums   dropped 8"
    ]


def test_on_plain_lines_a_trouble_is_reported_when_it_begins_and_when_all_are_over(tmp_path: Path) -> None:
    config = Config(run=Run(folder=str(tmp_path)))
    out = Console(file=io.StringIO(), width=160)
    with Screen(config, layout_of(config), plain=True, console=out) as screen:
        for seconds in (5, 6, 7):
            trouble = f"w has been silent for {seconds} s; lost in {20 - seconds} s"
            screen.show(msgspec.structs.replace(queues(1), troubles=[trouble]))
        screen.show(queues(1))
        screen.show(queues(1))
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("waits: w has been silent") == 1
    assert shown.count("continues") == 1


def test_neither_growing_queues_nor_flapping_workers_flood_the_plain_lines(tmp_path: Path) -> None:
    config = Config(run=Run(folder=str(tmp_path)))
    out = Console(file=io.StringIO(), width=80)
    with Screen(config, layout_of(config), plain=True, console=out) as screen:
        for count in range(50):
            reported = [
                f"no reward worker is here: {count} samples wait to be scored",
                "rollout-1 has been silent for 11 s",
            ]
            screen.show(msgspec.structs.replace(queues(1), troubles=reported))
            screen.show(msgspec.structs.replace(queues(1), troubles=[]))
        screen.show(msgspec.structs.replace(queues(1), troubles=["rollout-2 has been silent for 11 s"]))
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("no reward worker is here") == 1
    assert shown.count("rollout-1 has been silent") == shown.count("rollout-2 has been silent") == 1
    assert shown.count("continues") == 1


def test_the_start_of_many_workers_is_reported_in_short_lines(tmp_path: Path) -> None:
    config = Config(run=Run(folder=str(tmp_path)))
    out = Console(file=io.StringIO(), width=80)
    idle = queues(0)
    one = idle.workers[0]
    many = [
        msgspec.structs.replace(one, worker=f"rollout-{name}", phase="decode" if name < 900 else "load")
        for name in range(1000)
    ]
    with Screen(config, layout_of(config), plain=True, console=out) as screen:
        for done in range(30):
            trainer = msgspec.structs.replace(one, worker="trainer", role="trainer", phase=f"train {done}/64")
            screen.show(msgspec.structs.replace(idle, workers=[*many, trainer]))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    reported = "900 rollout: decode, 100 rollout: load, 1 trainer: train 0/64"
    assert [one.strip().partition("   ")[2] for one in lines[2:]] == [reported]


def test_a_steps_line_fits_on_80_columns() -> None:
    assert len(heading()) <= 80
    assert len(line(queues(99_999), 359_999.0)) <= 80


def test_what_a_process_said_is_not_read_as_markup(tmp_path: Path) -> None:
    """A path in brackets, as in gloo's errors, is a closing tag to rich."""
    config = Config(run=Run(folder=str(tmp_path)))
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with Screen(config, layout_of(config), plain=True, console=console) as screen:
        screen.report("trainer ended (status 1: [/src/gloo/pair.cc:553] closed)")
    assert "[/src/gloo/pair.cc:553] closed" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_ended_the_run_is_shown_before_its_processes_have_stopped(tmp_path: Path) -> None:
    config = Config(run=Run(folder=str(tmp_path)))
    console = Console(file=io.StringIO(), width=300, force_terminal=False)
    with Screen(config, layout_of(config), plain=True, console=console) as screen:
        screen.closing(False, f"store ended: FilesLost: \x1b[31m{'x' * 400}\nsee store.out")
        screen.closing(True)
    first, second = [each for each in console.file.getvalue().splitlines() if "stopping" in each]  # type: ignore[attr-defined]
    assert first.startswith("stopping all processes: store ended: FilesLost: ")
    assert "\x1b" not in first
    assert len(first) < 250
    assert second == "finished; stopping all processes"


def test_processes_that_have_not_joined_are_shown_with_their_time() -> None:
    starting = Starting(Config(), 100.0)
    (reward, rollout, trainer) = sorted(starting.update(None, 107.0))
    assert (reward.name, rollout.name, trainer.name) == ("reward-0", "rollout-0", "trainer")
    shown = glanced(None, absent=[rollout, trainer])
    assert "▶ rollout-0   start (loads the engine, 7 s)" in shown
    assert "▲ trainer     start (loads the model, 7 s)" in shown
    here = queues(0)
    assert [one.name for one in starting.update(here, 110.0)] == ["reward-0", "trainer"]
    gone = msgspec.structs.replace(here, workers=[])  # rollout-0 died, and starts again
    starting.update(gone, 200.0)
    assert ("rollout-0", 5.0) in [(one.name, one.seconds) for one in starting.update(gone, 205.0)]
    assert starting.update(msgspec.structs.replace(here, finished=True), 300.0) == []


def test_plain_lines_of_a_start_name_the_processes_that_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("rhymed.start.launch.screen.time.monotonic", lambda: now[0])
    config = Config(run=Run(folder=str(tmp_path)))
    out = Console(file=io.StringIO(), width=120)
    trainer = msgspec.structs.replace(queues(0).workers[0], worker="trainer", role="trainer", phase="")
    with Screen(config, layout_of(config), plain=True, console=out) as screen:
        for second in range(70):
            now[0] = 1000.0 + second
            workers = [trainer] * (second >= 5) + queues(0).workers * (second >= 65)
            screen.show(msgspec.structs.replace(queues(0), workers=workers) if second >= 2 else None)
    lines = [line.strip() for line in out.file.getvalue().splitlines()[2:]]  # type: ignore[attr-defined]
    assert lines == [
        "0:02   rollout-0: start (loads the engine, 2 s), trainer: start (loads the model, 2 s)",
        "0:05   trainer: ready, rollout-0: start (loads the engine, 5 s)",
        "0:35   trainer: ready, rollout-0: start (loads the engine, 35 s)",
        "1:05   trainer: ready, rollout-0: decode",
    ]


def test_a_steps_line_has_the_time_that_is_left(tmp_path: Path) -> None:
    assert line(queues(3), 65.0, 750.0).split()[-2:] == ["1:05", "12m30s"]
    assert line(queues(3), 65.0).split()[-2:] == ["1:05", "-"]
    config = Config(run=Run(folder=str(tmp_path)))
    writer, out = Writer(layout_of(config).folder), Console(file=io.StringIO(), width=120)
    now = time.time()
    writer.write([Event(t=now - ago, event="trained", step=step) for step, ago in enumerate((20.0, 10.0, 0.0))])
    writer.close()
    with Screen(config, layout_of(config), plain=True, console=out) as screen:
        screen.show(queues(3, **{"reward/mean": 0.5}))
    (trained,) = [line for line in out.file.getvalue().splitlines() if line.startswith("3/30")]  # type: ignore[attr-defined]
    assert trained.endswith(("4m30s", "4m29s"))


def test_a_broker_that_answers_no_more_is_a_trouble_on_plain_lines(tmp_path: Path, monkeypatch) -> None:
    out = io.StringIO()
    config = Config(run=Run(folder=str(tmp_path)))
    with Screen(config, layout_of(config), plain=True, console=Console(file=out, width=100)) as screen:
        screen.show(queues(1))
        screen.show(None)
        assert "not answered" not in out.getvalue()
        monkeypatch.setattr("rhymed.start.launch.screen.SILENT_S", 0.0)
        screen.show(None)
        assert "-- waits: the broker has not answered for 0 s" in out.getvalue()
        screen.show(queues(2))
        assert out.getvalue().rstrip().endswith("-- continues")
