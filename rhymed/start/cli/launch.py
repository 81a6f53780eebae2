"""`rhymed launch`: the files with which a cluster's own engine starts a run."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.core.text import quoted
from rhymed.start.cli.options import add_config, add_examples, make_parser, read_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rhymed.core.config import Config
    from rhymed.placement.slurm import Options


def add(parser: argparse.ArgumentParser) -> None:
    add_examples(parser, "rhymed launch slurm my.toml --partition gpu", "sh my-slurm/submit.sh")
    engines = parser.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    slurm = make_parser(engines, "slurm", "write batch scripts, and submit.sh, which submits them", _slurm)
    add_config(slurm)
    slurm.add_argument("--out", type=Path, metavar="FOLDER", help="write the files there (default: NAME-slurm)")
    slurm.add_argument("--force", action="store_true", help="overwrite files that exist with other contents")
    slurm.add_argument("--cpu", action="store_true", help="engines and trainer compute on processors")
    slurm.add_argument("--partition", default="", metavar="NAME", help="of all jobs (default: the cluster's)")
    slurm.add_argument("--cpu-partition", default="", metavar="NAME", help="of jobs that need no GPU")
    slurm.add_argument("--time", default="", metavar="TIME", help="limit of each job, e.g. 1-12:00:00")
    slurm.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="JOB:OPTION",
        help="one more option of a job (head, trainer, rollout, reward, all), e.g. rollout:--qos=preempt; repeatable",
    )
    slurm.add_argument(
        "--first-port", type=int, default=5550, metavar="N", help="of four, for two runs on one node (default: 5550)"
    )
    slurm.add_argument(
        "--program", default="", metavar="COMMAND", help="how nodes call rhymed (default: this Python's -m rhymed)"
    )


def _check(config: Config) -> None:
    """Raises `ConfigError` with everything that would make the run fail, as far as this machine shows."""
    from rhymed.check.dryrun import elsewhere_check

    show("check    data, rewards", flush=True)
    report = elsewhere_check(config)
    for warning in report.warnings:
        show(f"warning  {warning}", flush=True)
    if report.errors:
        raise ConfigError("\n".join(report.errors))


def _slurm(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    from rhymed.placement.files import all_keys, split_keys, write
    from rhymed.placement.slurm import CONFIG, SUBMIT, jobs, scripts

    options = _slurm_options(arguments, config.run.name)
    files, planned = scripts(config, options), jobs(config, gpus=options.gpus)
    if not arguments.program:  # else the nodes have other files and packages
        _check(config)
    for name, text in files.items():
        show(f"\n{'# ' + name:-<100}\n{text}", end="")
    show("")
    written = write(options.folder, {**files, CONFIG: config.model_dump_json(indent=1) + "\n"}, force=arguments.force)
    seats = [seat for job in planned for seat in job.seats]
    split_keys(all_keys(config, options.folder, seats), options.folder / "keys", seats)
    for file in written:
        show(f"wrote    {file}")
    show(f"next     on the cluster: sh {quoted(options.folder / SUBMIT)}")
    return 0


def _slurm_options(arguments: argparse.Namespace, name: str) -> Options:
    from rhymed.placement.slurm import Options

    folder = (arguments.out or Path(f"{name}-slurm")).resolve()
    if not 1024 <= arguments.first_port <= 65_532:
        raise ConfigError(f"--first-port {arguments.first_port}: a port from 1024 to 65532 is expected")
    program = shlex.split(arguments.program) or [sys.executable, "-m", "rhymed"]
    return Options(
        folder=folder,
        workdir=Path.cwd(),
        program=program,
        partition=arguments.partition,
        cpu_partition=arguments.cpu_partition,
        time=arguments.time,
        gpus=not arguments.cpu,
        first_port=arguments.first_port,
        further=_further(arguments.sbatch),
    )


def _further(given: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Raises `ConfigError`."""
    from rhymed.placement.slurm import JOBS

    found: dict[str, list[str]] = {job: [] for job in JOBS}
    for text in given:
        job, colon, option = text.partition(":")
        if not colon or job not in (*JOBS, "all") or not option.startswith("-") or "\n" in option:
            raise ConfigError(
                f"--sbatch {text}: write JOB:OPTION with one of {', '.join(JOBS)} or all, e.g. all:--account=me"
            )
        for one in JOBS if job == "all" else (job,):
            found[one].append(option)
    return found
