"""`python -m benchmarks NAME`: the measurements of docs/experiments.md as commands. `rhymed bench spec` is one of
them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.gpu import PARTS
from rhymed.core.errors import HOPELESS, ConfigError
from rhymed.core.output import show
from rhymed.start.cli import bench as spec
from rhymed.start.cli.bench import listed


class Benchmark(NamedTuple):
    module: str
    options: tuple[str, ...] = ()  # of its `run`


BENCHMARKS = {
    "store": Benchmark("benchmarks.store"),
    "rewards": Benchmark("benchmarks.scale.rewards"),
    "broker": Benchmark("benchmarks.broker", ("workers", "samples")),
    "weights": Benchmark("benchmarks.weights", ("model",)),
    "architectures": Benchmark("benchmarks.architectures", ("names", "out")),
    "grades": Benchmark("benchmarks.grades", ("names", "out")),
    "hosts": Benchmark("benchmarks.hosts.hosts", ("hosts", "sizes", "gbit", "rounds", "dry", "out")),
    "model": Benchmark("benchmarks.policy.model", ("out",)),
    "train": Benchmark("benchmarks.gpu.trainer", ("tokens", "methods")),
    "index": Benchmark("benchmarks.index", ("trace", "model")),
    "sampler": Benchmark("benchmarks.sampling.run"),
    "spec": Benchmark("rhymed.start.bench.spec", spec.OPTIONS),
    "gpu": Benchmark("benchmarks.gpu.gpu", ("parts", "dry", "device", "seconds", "out")),
    "learn": Benchmark("benchmarks.learn.learn", ("config", "algorithms", "seeds", "out")),
    "peers": Benchmark("benchmarks.peers.run", ("task", "rounds", "steps", "out")),
    "cluster": Benchmark("benchmarks.cluster.run", ("rounds", "steps", "out")),
    "agents": Benchmark("benchmarks.agents.run", ("parts", "trace", "out")),
    "pipe": Benchmark("benchmarks.schedule", ("trace", "cost", "keep")),
    "whole": Benchmark(
        "benchmarks.whole.run",
        ("config", "parts", "methods", "rounds", "steps", "workers", "samples", "cost", "out"),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Status 2 after a mistake of the user, which is one line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure a part of the system here.")
    _add(parser)
    try:
        return handle(parser.parse_args(argv))
    except HOPELESS as error:
        show(f"benchmarks: {error}", file=sys.stderr)
        return 2


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=BENCHMARKS, metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="a small version that takes less than a minute")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="architectures, grades, model, pipe, learn, gpu, whole: a folder (gpu adds to it, grades and whole"
        " continue it); agents, cluster, hosts, peers, spec: a JSON file (hosts and peers continue it)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="index, pipe: recorded responses (default: synthetic ones); index: or a run's folder; agents: the folder"
        " of a run in turns",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="index: replay responses of this model; spec, weights: only this model (spec: or a run)",
    )
    _add_lists(parser)
    _add_runs(parser)
    _add_machines(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on standard output")


def _add_machines(parser: argparse.ArgumentParser) -> None:
    """Where it is measured, and what a machine is taken to be."""
    parser.add_argument(
        "--gbit", type=float, metavar="R", help="hosts: rate of every host's line, in Gbit per second"
    )
    parser.add_argument(
        "--parts",
        type=listed(str),
        metavar="A,B",
        help=f"gpu: only {', '.join(PARTS)}; agents: slots, turns, endpoint, drafts; whole: measured, simulated",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="gpu: the limit of each part (default: its own)")
    parser.add_argument("--dry", action="store_true", default=None, help="gpu, hosts: print what would be done")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="spec, gpu: where; gpu: small versions on a CPU")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="spec: of the engines' weights")
    parser.add_argument(
        "--cost", type=Path, metavar="FILE", help="pipe, whole: JSON [[samples, seconds per step], ...]"
    )
    parser.add_argument("--keep", type=float, metavar="P", help="pipe: probability that a run-ahead token is kept")


def _add_lists(parser: argparse.ArgumentParser) -> None:
    """What is measured."""
    for name, kind in {"methods": str, "batches": int, "temperatures": float, "epochs": int, "tokens": int}.items():
        users = {"methods": "spec, train, whole", "tokens": "train"}.get(name, "spec")
        more = " (1: with history of other prompts only, 2: with that of epoch 1)" if name == "epochs" else ""
        parser.add_argument(f"--{name}", type=listed(kind), metavar="A,B", help=f"{users}: only these{more}")
    parser.add_argument("--hosts", type=listed(int), metavar="A,B", help="hosts: only so many")
    parser.add_argument("--sizes", type=listed(float), metavar="A,B", help="hosts: gigabytes of weights")


def _add_runs(parser: argparse.ArgumentParser) -> None:
    """Of benchmarks that train, and of those that repeat."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="learn, whole: the task (default: configs/quickstart.toml; whole: configs/arithmetic.toml)",
    )
    parser.add_argument("--algorithms", type=listed(str), metavar="A,B", help="learn: only these")
    parser.add_argument("--names", type=listed(str), metavar="A,B", help="architectures, grades: only these")
    parser.add_argument("--seeds", type=int, metavar="N", help="learn: runs of each algorithm")
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="spec: measurements of each method; hosts: of each cell; peers, cluster, whole: of each side",
    )
    pauses = "broker: only pauses of its event loop, with so many"
    for name, what in (
        ("workers", "connected workers; whole: simulate only so many"),
        ("samples", "samples a step; whole: of each engine"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{pauses} {what}")
    parser.add_argument("--task", metavar="NAME", help="peers: quickstart (default) or long")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="peers, cluster: training steps of each run; whole: of the simulation"
    )


def handle(arguments: argparse.Namespace) -> int:
    # SIGTERM ends it as Ctrl-C does, so that the processes it started end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    benchmark = BENCHMARKS[arguments.name]
    _refuse_others(arguments, benchmark)
    options = {name: getattr(arguments, name) for name in benchmark.options}
    options = {name: value for name, value in options.items() if value is not None}
    module = importlib.import_module(benchmark.module)
    with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
        result = module.run(arguments.quick, **options)
    if arguments.json:
        show(json.dumps(result, indent=2))
    return int(isinstance(result, dict) and result.get("good") is False)


def _refuse_others(arguments: argparse.Namespace, benchmark: Benchmark) -> None:
    """Options that this benchmark does not have."""
    known = {name for one in BENCHMARKS.values() for name in one.options}
    if given := [name for name in sorted(known - {*benchmark.options}) if getattr(arguments, name) is not None]:
        names = ", ".join(f"--{name}" for name in given)
        raise ConfigError(f"{arguments.name} has no {names} (see python -m benchmarks --help)")


if __name__ == "__main__":
    sys.exit(main())
