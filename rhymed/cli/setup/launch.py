"""`rhymed launch`: the files with which a cluster's own engine starts a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.cli.options import add_config, add_examples, make_parser, read_config
from rhymed.errors import ConfigError
from rhymed.output import show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rhymed.config import Config
    from rhymed.manifests.kubernetes.pods import Options as KubernetesOptions
    from rhymed.manifests.slurm import Options


def add(commands: Any) -> None:
    parser = make_parser(commands, "launch", "write the files with which Slurm or Kubernetes starts a run")
    add_examples(
        parser,
        "rhymed launch slurm my.toml --partition gpu --submit",
        "rhymed launch kubernetes my.toml --images registry.example/rhymed --rollout-max 16",
    )
    engines = parser.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    _add_slurm(engines)
    _add_kubernetes(engines)


def _add_slurm(engines: Any) -> None:
    slurm = make_parser(engines, "slurm", "write batch scripts, print them, and submit them with --submit", _slurm)
    add_config(slurm)
    _add_out(slurm, "NAME-slurm")
    slurm.add_argument("--submit", action="store_true", help="submit the jobs")
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


def _add_kubernetes(engines: Any) -> None:
    kubernetes = make_parser(
        engines, "kubernetes", "write manifests as a kustomization, for kubectl apply -k", _kubernetes
    )
    add_config(kubernetes)
    _add_out(kubernetes, "NAME-kubernetes")
    kubernetes.add_argument("--namespace", default="default", metavar="NAME", help="default: default")
    kubernetes.add_argument(
        "--images", default="rhymed", metavar="PREFIX", help="of the images PREFIX-slim, -worker and -gpu (rhymed)"
    )
    for role, default in {"rollout": " (default: placement.max)", "reward": ""}.items():
        kubernetes.add_argument(
            f"--{role}-max",
            type=int,
            metavar="N",
            help=f"let KEDA scale {role} workers up to N by their work{default}",
        )
    kubernetes.add_argument("--storage-class", default="", metavar="NAME", help="of store, broker and checkpoints")
    kubernetes.add_argument(
        "--shared-class", default="", metavar="NAME", help="of the models, which many pods mount (ReadWriteMany)"
    )
    kubernetes.add_argument("--ray", action="store_true", help="a RayCluster for KubeRay instead")


def _add_out(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"write the files there (default: {default})")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist with other contents")
    parser.add_argument("--cpu", action="store_true", help="engines and trainer compute on processors")


def _config(arguments: argparse.Namespace, what: str) -> Config:
    from rhymed.placement.plan import check_one_store

    config = read_config(arguments)
    check_one_store(config, what)
    return config


def _check(config: Config, *, same_files: bool) -> None:
    """Raises `ConfigError` with everything that would make the run fail, as far as this machine shows."""
    from rhymed.check.elsewhere import elsewhere_check

    show("check    data, model, rewards", flush=True)
    report = elsewhere_check(config, same_files=same_files)
    for warning in report.warnings:
        show(f"warning  {warning}", flush=True)
    if report.errors:
        raise ConfigError("\n".join(report.errors))


def _slurm(arguments: argparse.Namespace) -> int:
    config = _config(arguments, "jobs of Slurm")
    from rhymed.manifests import folder, submit
    from rhymed.manifests.slurm import CONFIG, SUBMIT, job_name, jobs, scripts
    from rhymed.run.layout import layout_of

    options = _slurm_options(arguments, config.run.name)
    files, planned = scripts(config, options), jobs(config, gpus=options.gpus)
    _check(config, same_files=not arguments.program)
    for name, text in files.items():
        show(f"\n{'# ' + name:-<100}\n{text}", end="")
    show("")
    for warning in folder.unshared((options.folder, layout_of(config).folder.parent)):
        show(f"warning  {warning}")
    written = folder.write(
        options.folder, {**files, CONFIG: config.model_dump_json(indent=1) + "\n"}, force=arguments.force
    )
    seats = [seat for job in planned for seat in job.seats]
    folder.split_keys(folder.all_keys(config, options.folder, seats), options.folder / "keys", seats)
    for file in written:
        show(f"wrote    {file}")
    if not arguments.submit:
        show(f"next     rhymed launch slurm … --submit, or on the cluster: sh {options.folder / SUBMIT}")
        return 0
    for line in submit.submit(options, planned, [job_name(config, job.name) for job in planned]):
        show(f"job      {line}")
    return 0


def _kubernetes(arguments: argparse.Namespace) -> int:
    config = _config(arguments, "manifests of Kubernetes")
    from urllib.parse import urlsplit

    from rhymed.manifests import folder
    from rhymed.manifests.document import yaml_of
    from rhymed.manifests.kubernetes.render import CONFIG, TOKEN, objects, ray_objects
    from rhymed.placement.plan import seats

    options, out = (
        _kubernetes_options(arguments, config),
        (arguments.out or Path(f"{config.run.name}-kubernetes")).resolve(),
    )
    found = ray_objects(config, options) if arguments.ray else objects(config, options)
    _check(config, same_files=False)
    about = f"Run {config.run.name}, written by rhymed launch kubernetes."
    files = {name: yaml_of(listed, about) for name, listed in found.items()}
    for warning in folder.named_files(config):
        show(f"warning  {warning} is on this machine: pods need it in their image or on a volume under the same path")
    if config.run.remote and urlsplit(config.run.remote).scheme in ("", "file"):
        show(f"warning  run.remote = {config.run.remote!r} is a folder of this machine: name a URL that pods reach")
    files |= {CONFIG: config.model_dump_json(indent=1) + "\n", ".gitignore": "keys/\n"}
    written = folder.write(out, files, force=arguments.force)
    folder.copy_keys(folder.all_keys(config, out, seats(config)), out / "keys")
    folder.make_token(out / "keys" / TOKEN)
    for file in written:
        kinds = ", ".join(one["kind"] for one in found.get(file.name, ()))
        show(f"wrote    {file}{f': {kinds}' if kinds else ''}")
    show(f"next     kubectl apply -k {out}")
    return 0


def _kubernetes_options(arguments: argparse.Namespace, config: Config) -> KubernetesOptions:
    """Raises `ConfigError`."""
    import re

    from rhymed.manifests.kubernetes.pods import Options

    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", arguments.namespace):
        raise ConfigError(f"--namespace {arguments.namespace}: lower-case letters, digits and - are expected")
    given = {"rollout": arguments.rollout_max, "reward": arguments.reward_max}
    most = {role: number for role, number in given.items() if number is not None}
    if config.placement.max:
        most.setdefault("rollout", config.placement.max)
    for role, number in most.items():
        if number < 1:
            raise ConfigError(f"--{role}-max {number}: a number of workers of at least 1 is expected")
    return Options(
        namespace=arguments.namespace,
        images=arguments.images,
        gpus=not arguments.cpu,
        volume_class=arguments.storage_class,
        shared_class=arguments.shared_class,
        most=most,
    )


def _slurm_options(arguments: argparse.Namespace, name: str) -> Options:
    import shlex
    import sys

    from rhymed.manifests.slurm import Options

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
    from rhymed.manifests.slurm import JOBS

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
