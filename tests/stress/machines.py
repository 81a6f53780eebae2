"""`python -m tests.stress.machines`: a run on a Ray cluster that loses machines, against the same run calm.

Ray's nodes are processes of this machine (`ray.cluster_utils`). Machines with rollout workers and with the trainer
are killed with all that runs there, Ray alone is killed on one, and Ray's head, after which the trainer is killed;
others are added. It passes when both runs trained the same samples, each once, to the same weights, bit for bit, and
when nothing of the run is left.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster.losses import KINDS, Plan, suffer
from benchmarks.cluster.machines import Machines, Watched
from benchmarks.cluster.trial import END_S, LOOK_S, Trial, config, on_ray
from benchmarks.twins import compare_runs
from rhymed.core.errors import ConfigError
from rhymed.core.wire.keys import ROLES, make_keys
from rhymed.records.history.compare.audit import audit
from rhymed.records.history.folder import open_folder
from tests.stress import command
from tests.stress.network import Network

NAMES = {"trainer", "rollout-0", "rollout-1", "reward-0"}
AFTER = 12  # steps after the last loss, more than pass until it is noticed
UNPLACED = "the connection to Ray is lost"


def run(
    quick: bool,
    machines: int = 3,
    every: int | None = None,
    kinds: Sequence[str] = (),
    out: Path | None = None,
    network: bool = False,
) -> dict[str, Any]:
    """`machines`: besides the head's. `every`: steps between losses. `out`: a folder that keeps the runs. `network`:
    every machine is a network namespace with an address of its own, and all links have keys; needs root."""
    if unknown := set(kinds) - set(KINDS):
        raise ConfigError(f"--kinds {', '.join(sorted(unknown))}: there are {', '.join(KINDS)}")
    every, chosen = every or (3 if quick else 8), list(kinds or KINDS)
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-cluster-"))
    steps = 1 + (every + 2) * len(chosen) + AFTER
    early = False
    with (
        Trial(config(folder, "calm", steps, 2)) as calm,
        Network(machines, cpus=2) if network else Machines(machines, cpus=2) as cluster,
    ):
        sections = on_ray(cluster.address)
        if network:
            make_keys(folder / "keys", ROLES)
            sections["net"] = {"http": "", "keys": str(folder / "keys")}
        wanted = config(folder.resolve(), "lost", steps, 2, **sections)
        with Trial(wanted, cluster.prefix if isinstance(cluster, Network) else ()) as trial:
            trial.until(1)
            losses = suffer(Plan(trial, cluster), chosen, NAMES, every)
            if chosen[-1] == "Ray's head":
                trial.wait_for(lambda: UNPLACED in trial.output.read_text(), UNPLACED)
                early = len(trial.done()) == steps
                cluster.kill_process("trainer")
            trial.finish()
        left = _left(cluster)
        calm.finish()
    result = _judge(trial.folder, calm.folder, [f"{one.name} ({one.pid})" for one in left])
    result["wrong"] += ["the run ended before it noticed that Ray is lost"] if early else []
    result |= {
        "good": not result["wrong"],
        "losses": [loss.kind for loss in losses],
        "steps": steps,
        "folder": str(folder),
    }
    print(f"{', '.join(result['losses'])}: {result['audit']}")
    for wrong in result["wrong"]:
        print(f"wrong: {wrong}")
    print("passed: every sample once, and the same as in the calm run" if result["good"] else f"failed; see {folder}")
    if out is None and result["good"]:
        shutil.rmtree(folder)
    return result


def _left(cluster: Machines) -> list[Watched]:
    """What outlives the run. Without Ray's head, its processes learn from the broker that it is over, and may end
    after it."""
    end = time.monotonic() + END_S
    while (left := cluster.watched()) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return left


def _judge(lost: Path, calm: Path, left: list[str]) -> dict[str, Any]:
    with open_folder(calm) as one, open_folder(lost) as other:
        peace, war = audit(one), audit(other)
    both = compare_runs(calm, lost)
    wrong = [f"calm: {fault}" for fault in peace.wrong] + [f"lost: {fault}" for fault in war.wrong + both.wrong]
    wrong += [f"{war.dropped} samples were dropped"] if war.dropped else []
    wrong += [f"left behind: {', '.join(left)}"] if left else []
    return {"audit": both.weights, "samples": war.trained, "wrong": wrong}


def main() -> int:
    parser = command.parser("tests.stress.machines", "lose machines of a Ray cluster, and compare with a calm run")
    parser.add_argument("--machines", type=int, metavar="N", help="besides that of Ray's head")
    parser.add_argument("--every", type=int, metavar="N", help="steps between two losses")
    parser.add_argument("--kinds", type=lambda text: text.split(","), metavar="A,B", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--network", action="store_true", help="network namespaces with addresses; needs root")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the runs here")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
