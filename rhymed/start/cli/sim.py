"""`rhymed sim`: the broker's ledger and policies in virtual time, on synthetic or recorded lengths."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rhymed.core.output import show
from rhymed.start.cli.options import add_examples


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed sim --workers 32 --slots 32",
        "rhymed sim --trace run.jsonl --policy flow --staleness 1 --json > sim.json",
    )
    _add_cluster(parser)
    _add_work(parser)
    option = parser.add_argument_group("the schedule (default: all of them, compared)").add_argument
    option("--policy", choices=("fifo", "rhyme", "flow"))
    option("--staleness", type=_at_least_0(int), default=0, metavar="N")
    option("--run-ahead", action="store_true", help="generate the next step before its weights are loaded")
    parser.add_argument("--json", action="store_true", help="the table as JSON on standard output")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the machines").add_argument
    option("--workers", type=_positive(int), default=32, metavar="N", help="rollout workers (default: 32)")
    option(
        "--slots", type=_positive(int), default=32, metavar="N", help="concurrent samples per worker (default: 32)"
    )
    option("--cost", type=Path, metavar="FILE", help="JSON [[samples, seconds per engine step], ...]")
    option("--train-s", type=_at_least_0(float), metavar="S", help="seconds per training step (default: rollout / 4)")
    option("--overlap", action="store_true", help="training begins with complete groups, as with trainer.overlap")
    option(
        "--keep", type=_probability, default=0.9987, metavar="P", help="probability that a run-ahead token is kept"
    )
    option("--speeds", type=_speeds, metavar="X,Y,...", help="the workers' speeds in turn, such as 1,0.5,0.25")
    option(
        "--drafts", metavar="WHAT", help="drafts from history: free (to verify), cpu (as measured), or a JSON file"
    )
    option("--flat", type=_probability, default=0.0, metavar="P", help="share of groups without signal: replaced")
    option("--failures", type=_at_least_0(int), default=0, metavar="N", help="workers that die, one after another")


def _add_work(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the work").add_argument
    option("--trace", type=Path, metavar="FILE", help="JSONL of `rhymed history export`")
    option("--prompts", type=_positive(int), default=512, metavar="N", help="prompts per step (default: 512)")
    option("--group", type=_positive(int), default=16, metavar="N", help="samples per prompt (default: 16)")
    option("--steps", type=_positive(int), metavar="N", help="default: 20; with --trace: all")
    option(
        "--mean", type=_positive(float), default=3000.0, metavar="TOKENS", help="mean response length (default: 3000)"
    )
    option("--cap", type=_positive(int), default=32768, metavar="TOKENS", help="longest response (default: 32768)")
    option(
        "--sampler",
        choices=("uniform", "length"),
        default="uniform",
        help="which prompts share a step, as data.sampler (default: uniform)",
    )
    option("--seed", type=int, default=0, metavar="N")


def handle(arguments: argparse.Namespace) -> int:
    from rhymed_broker.simulate.study import MODES, Mode, compare, table

    workload = _workload(arguments)
    cluster = _cluster(arguments, workload)
    modes: Sequence[Mode] = MODES
    if arguments.policy:
        modes = (Mode(arguments.policy, arguments.staleness, int(arguments.run_ahead)),)
    results = compare(workload, cluster, modes)
    show(json.dumps([result.row() for result in results], indent=2) if arguments.json else table(results))
    return 0


def _workload(arguments: argparse.Namespace) -> Any:
    from rhymed_broker.plan import LONGEST
    from rhymed_broker.simulate.workload import Recorded, Shape, Synthetic, read_trace

    collect = LONGEST if arguments.sampler == "length" else 0.0
    if arguments.trace:
        return Recorded(read_trace(arguments.trace), arguments.prompts, arguments.steps, collect)
    shape = Shape(
        prompts=4 * arguments.prompts,
        prompts_per_step=arguments.prompts,
        group_size=arguments.group,
        steps=arguments.steps or 20,
        mean=arguments.mean,
        cap=arguments.cap,
        seed=arguments.seed,
        collect=collect,
    )
    return Synthetic(shape)


def _cluster(arguments: argparse.Namespace, workload: Any) -> Any:
    from dataclasses import replace

    from rhymed_broker.simulate.cluster import Cluster, bound_s
    from rhymed_broker.simulate.engine import Cost, read

    cost = Cost.read(arguments.cost) if arguments.cost else Cluster().cost
    cluster = Cluster(
        arguments.workers, arguments.slots, cost, keep=arguments.keep, flat=arguments.flat, seed=arguments.seed,
        slow=_slow(arguments), drafts=read(arguments.drafts) if arguments.drafts else None,
    )  # fmt: skip
    step_s = bound_s(workload, cluster) / max(1, workload.plan.steps)
    failures = {step_s * (number + 0.5): number % arguments.workers for number in range(arguments.failures)}
    return replace(
        cluster,
        train_s=step_s / 4 if arguments.train_s is None else arguments.train_s,
        beat_s=max(1.0, step_s / 50),
        failures=failures,
        overlap=arguments.overlap,
    )


def _slow(arguments: argparse.Namespace) -> dict[int, float]:
    """Worker -> times slower than the others."""
    speeds = arguments.speeds or [1.0]
    return {number: 1 / speeds[number % len(speeds)] for number in range(arguments.workers)}


def _speeds(text: str) -> list[float]:
    return [_positive(float)(part) for part in text.split(",")]


def _number(kind: type[float], good: Callable[[float], bool], what: str) -> Callable[[str], float]:
    """A type of arguments: numbers for which `good` holds; `what` says which these are."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not good(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {what}")
        return value

    return read


def _positive(kind: type[float]) -> Callable[[str], float]:
    return _number(kind, lambda value: value > 0, "more than 0")


def _at_least_0(kind: type[float]) -> Callable[[str], float]:
    return _number(kind, lambda value: value >= 0, "at least 0")


def _probability(text: str) -> float:
    return _number(float, lambda value: 0 <= value <= 1, "between 0 and 1")(text)
