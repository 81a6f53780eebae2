from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError
from rhymed.core.messages import EVAL, Holding, Queues, SampleId, StepRow, WorkerRow
from rhymed.core.run.folder import layout_of_folder, save
from rhymed.core.run.stragglers import stragglers
from rhymed.core.run.timeline import Times
from rhymed.show.top import plain
from rhymed.start.cli.steer import where_of

HELD = [Holding(id=SampleId(3, "abc", index), tokens=10 * index, seconds=float(index)) for index in range(6)]
SNAPSHOT = Queues(
    run="demo",
    uptime_s=3700,
    version=3,
    step=3,
    steps=40,
    finished=False,
    queues={"waiting": 12, "running": 6, "trained": 192},
    oldest_s={"waiting": 75.0},
    workers=[
        WorkerRow(
            worker="rollout-0@[host]", role="rollout", host="h", pid=1, slots=8, version=3, phase="decode",
            silent_s=0.4, holding=HELD, held=len(HELD),
        ),
        WorkerRow(
            worker="reward-0", role="reward", host="h", pid=2, slots=4, version=-1, phase="", silent_s=1, holding=[]
        ),
    ],
    open_steps=[StepRow(step=3, states={"waiting": 12, "running": 6}, groups_ready=1, groups=8, open_s=9.0)],
    lag_ms=2.5,
)  # fmt: skip


def text(snapshot: Queues, width: int = 110) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(plain.render(snapshot, width))
    return console.export_text()


def test_the_head_has_elapsed_and_remaining_time() -> None:
    found = plain.render(SNAPSHOT, 110, Times(3700.0, 750.0)).plain
    assert found.startswith("demo  step 3/40  v3  1h01m elapsed, about 12 min left")


def test_a_start_names_the_roles_that_have_not_joined() -> None:
    assert "starting: the trainer has not joined yet" in text(SNAPSHOT)
    reward = [row for row in SNAPSHOT.workers if row.role == "reward"]
    early = msgspec.structs.replace(SNAPSHOT, workers=reward)
    assert "starting: the trainer, rollout workers have not joined yet" in text(early)
    late = msgspec.structs.replace(early, troubles=["no rollout worker is here: 12 samples wait to be generated"])
    assert "not joined" not in text(late)
    assert "waits: no rollout worker is here" in text(late)
    assert "not joined" not in text(msgspec.structs.replace(early, finished=True))


def test_the_tables_name_everything() -> None:
    lines = [" ".join(line.split()) for line in text(SNAPSHOT).splitlines()]
    assert lines[0].startswith("demo step 3/40 v3 up 1h01m")
    assert lines[0].endswith("● live")
    assert "waiting 12 1m15s for a rollout worker" in lines
    assert "trained 192 - done" in lines
    [step] = [line for line in lines if line.startswith("step 4 ")]
    assert step.endswith(" 1/8 groups 9.0s 6 running 12 waiting"), "steps count from 1"
    [rollout] = [line.split() for line in lines if line.startswith("▶ rollout-0@[host]")]
    assert (rollout[2:5], rollout[-2:]) == (["h", "v3", "6/8"], ["0.4s", "decode"])
    [reward] = [line.split() for line in lines if line.startswith("★ reward-0")]
    assert (reward[2:5], reward[-2:]) == (["h", "-", "0/4"], ["1.0s", "-"])
    held = [line for line in lines if "/abc/" in line]
    assert held[0] == "3/abc/5 50 5.0s rollout-0@[host]", "ids count from 0"
    assert len(held) == plain.SHOWN


def test_groups_that_were_replaced_are_counted() -> None:
    step = StepRow(
        step=3, states={"scored": 6, "filtered": 4}, groups_ready=5, groups=10, filtered=2, refilled=2, open_s=9.0
    )
    found = msgspec.structs.replace(SNAPSHOT, open_steps=[step], queues={**SNAPSHOT.queues, "filtered": 4})
    lines = [" ".join(line.split()) for line in text(found).splitlines()]
    assert any(line.endswith("5/10 groups, 2 replaced 9.0s 6 scored 4 filtered") for line in lines)
    assert "filtered 4 - their groups had no signal" in lines
    none = msgspec.structs.replace(SNAPSHOT, queues={**SNAPSHOT.queues, "filtered": 0})
    assert "filtered" not in text(none)


def test_who_holds_up_the_others_is_named() -> None:
    """One is ten times slower, one makes nothing, one is silent; one that has nothing to do is none of these."""

    def worker(name: str, rate: float, held: int = 2, silent_s: float = 0.5) -> WorkerRow:
        return msgspec.structs.replace(
            SNAPSHOT.workers[0], worker=name, stats={"rollout/tokens_per_s": rate}, holding=HELD[:held],
            held=held, silent_s=silent_s,
        )  # fmt: skip

    workers = [worker("a", 100), worker("b", 110), worker("c", 10), worker("d", 0), worker("e", 90, silent_s=7)]
    crowd = msgspec.structs.replace(SNAPSHOT, workers=[*workers, worker("idle", 0, held=0), worker("f", 95)])
    assert stragglers(crowd) == {
        "c": "9 times slower than its peers", "d": "generates no tokens", "e": "silent for 7.0s",
    }  # fmt: skip
    assert "c: 9 times slower than its peers" in text(crowd)
    alone = msgspec.structs.replace(SNAPSHOT, workers=[worker("a", 0.0)])
    assert stragglers(alone) == {}, "nobody to compare it with"


def test_80_columns_are_enough() -> None:
    ids = [SampleId(EVAL + 12, "0123456789abcdef", index) for index in range(8)]
    held = [Holding(id=one, tokens=8192, seconds=4000.0) for one in ids]
    row = SNAPSHOT.workers[0]
    worker = msgspec.structs.replace(
        row, worker="rollout@some-host:1234567", phase="load version 12", holding=held, held=8
    )
    states = {state: 1024 for state in plain.PURPOSE}
    step = msgspec.structs.replace(SNAPSHOT.open_steps[0], states=states)
    crowd = msgspec.structs.replace(SNAPSHOT, workers=[worker], queues=states, oldest_s={}, open_steps=[step])
    lines = text(crowd, 80).splitlines()
    whole = [" ".join(line.split()) for line in lines]
    assert "▶ rollout@some-host:1234567 v3 8/8 - 0.4s load version 12" in whole
    assert "eval-v12/0123456789abcdef/0 8,192 1h06m rollout@some-host:1234567" in whole
    reported = " ".join(whole)
    for state, purpose in plain.PURPOSE.items():
        assert f"{state} 1,024 - {purpose}" in whole, "every queue, with its depth"
        assert f"1024 {state}" in reported, "and of every step"
    long = [line for line in lines if len(line.rstrip()) > 80]
    assert not long


def test_the_address_comes_from_the_run_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(Config.model_validate({"net": {"broker": "ipc:///x"}}).model_dump_json())
    assert layout_of_folder(tmp_path).broker == "ipc:///x"
    with pytest.raises(ConfigError, match=r"does not exist: name a run's folder"):
        layout_of_folder(tmp_path / "other")


@pytest.mark.parametrize(
    ("address", "status", "reported"),
    [("ipc://{}/none", 2, "no run is alive at ipc://"), ("tcp://127.0.0.1:9", 1, "no broker answered at tcp://")],
)
def test_nobody_there_is_reported_within_the_deadline(
    tmp_path: Path, address: str, status: int, reported: str
) -> None:
    command = [sys.executable, "-m", "rhymed", "queues", "--json", "--broker", address.format(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert reported in done.stderr
    assert "name the folder of another" in done.stderr


def test_json_survives() -> None:
    assert json.loads(msgspec.json.encode(SNAPSHOT))["workers"][0]["holding"][1]["id"]["index"] == 1


def test_a_watched_run_stays_the_same_when_another_one_starts(tmp_path: Path) -> None:
    """Its timeline, from which the elapsed time comes, is not that of the new run."""
    link = tmp_path / "latest"
    for name in ("one", "two"):
        save(load_config(None, (), {}, {"run.name": name, "run.folder": str(tmp_path)}))
        if name == "one":
            found = where_of(argparse.Namespace(run=link, broker=None), "viewer")
    assert link.resolve() == tmp_path / "two"
    assert found.folder == tmp_path / "one"
    assert found.address == layout_of_folder(tmp_path / "one").broker
