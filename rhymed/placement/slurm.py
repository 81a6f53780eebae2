"""Batch scripts of Slurm, from the plan. Pure.

Four jobs, because each kind of process ends for its own reasons: `head` (store, broker and uploader, next to their
disk), `trainer` (one task on each of its nodes), and the arrays `rollout` and `reward`, whose elements may be
cancelled, preempted and requeued one by one. A heterogeneous job would end as a whole with one of its components.

The jobs share one folder: the configuration, each role's keys, and the file `head` with the name of the machine on
which the head runs. Workers read it before each start of their process.

At the end: the functions in bash that the scripts call.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.text import quoted
from rhymed.placement.gpus import generates_on_gpus
from rhymed.placement.plan import BROKER_PORT, Hosts, Name, Seat, environment, seats, uploader

HEAD = "head"
JOBS = (HEAD, "trainer", "rollout", "environment", "reward")
PINNED: tuple[Name, Name] = ("store", "broker")
CONFIG = "config.json"
SUBMIT = "submit.sh"
KEYS = "RHYMED_NET__KEYS"
LEAVE_S = 10  # for workers, before the head ends when a run has failed


@dataclass(frozen=True)
class Options:
    """`folder`: of the scripts, on shared storage. `workdir`: what relative paths of the configuration begin at."""

    folder: Path
    workdir: Path
    program: Sequence[str] = ("rhymed",)
    partition: str = ""
    cpu_partition: str = ""  # of jobs without GPUs; empty: `partition`
    time: str = ""  # limit of each job, as sbatch reads it
    gpus: bool = True  # False: engines and trainer compute on processors
    first_port: int = BROKER_PORT  # of the four that head and trainer serve
    further: Mapping[str, Sequence[str]] = field(default_factory=dict)  # job -> options of sbatch

    def partition_of(self, gpus: int) -> str:
        return self.partition if gpus or not self.cpu_partition else self.cpu_partition


@dataclass(frozen=True)
class Job:
    name: str  # head, trainer, rollout or reward
    seats: tuple[Seat, ...]
    about: str

    @property
    def gpus(self) -> int:
        return self.seats[0].gpus

    @property
    def is_array(self) -> bool:
        return self.seats[0].kind == "elastic"

    @property
    def nodes(self) -> int:
        return self.seats[0].count if self.seats[0].kind == "gang" else 1


def jobs(config: Config, *, gpus: bool = True) -> list[Job]:
    """In the order in which they are submitted. A role without processes has no job."""
    by_name = {seat.name: seat for seat in seats(config, gpus=gpus)}
    head = tuple(by_name.pop(name) for name in PINNED)
    freely = "An element of this array may be cancelled, preempted, requeued or added at any time."
    about = {
        "trainer": "The trainer: one task on each of its nodes. Requeued, it continues from its newest checkpoint.",
        "rollout": f"Rollout workers. {freely}",
        "environment": f"Environment workers. {freely}",
        "reward": f"Reward workers. {freely}",
    }
    found = [Job(HEAD, head, _about_head(config))]
    return found + [Job(seat.name, (seat,), about[seat.name]) for seat in by_name.values() if seat.count]


def _about_head(config: Config) -> str:
    named = "Store, broker and uploader" if config.run.remote else "Store and broker"
    return f"{named}, on one machine with the disk of the run's folder."


def scripts(config: Config, options: Options) -> dict[str, str]:
    """File name -> text: a script for each job, and the one that submits them. Raises `ConfigError`."""
    for path in (options.folder, options.workdir):
        if wrong := set(str(path)) & set('%\\"\n$`'):
            raise ConfigError(
                f"{str(path)!r}: Slurm does not read {sorted(wrong)[0]!r} in a folder's name; use another"
            )
    planned = jobs(config, gpus=options.gpus)
    if config.schedule.colocate and options.gpus and generates_on_gpus(config):
        raise ConfigError(
            "schedule.colocate = true: engines share the trainer's GPUs, but Slurm gives each job GPUs of its own;"
            " set it to false, or start rhymed run in a job of one machine"
        )
    found = {f"{job.name}.sbatch": script(job, config, options) for job in planned}
    return found | {SUBMIT: submission(planned, config, options)}


def job_name(config: Config, job: str) -> str:
    return f"{config.run.name}-{job}"


def script(job: Job, config: Config, options: Options) -> str:
    lines = ["#!/bin/bash", f"# {job.about}", "# Written by rhymed launch slurm."]
    lines += [f"#SBATCH {option}" for option in _requests(job, config, options)]
    body = _head(job, config, options) if job.name == HEAD else _worker(job, config, options)
    return "\n".join([*lines, "", f"FOLDER={quoted(options.folder)}", *KEEP, *WATCH, *body]) + "\n"


def _requests(job: Job, config: Config, options: Options) -> list[str]:
    """Options of sbatch."""
    seat, partition = job.seats[0], options.partition_of(job.gpus)
    array, memory = job.is_array, sum(one.memory_gib for one in job.seats)
    found = [
        f"--job-name={job_name(config, job.name)}",
        f"--chdir={options.workdir}",
        f"--output={options.folder}/{job.name}{'-%a' if array else ''}.out",
        "--open-mode=append",
        "--requeue",
        *(["--dependency=singleton"] if job.name == HEAD else []),  # a second head of this run waits for the first
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={math.ceil(sum(one.cpus for one in job.seats))}",
    ]
    found += [f"--array=0-{seat.count - 1}"] if array else []
    found += [f"--mem={math.ceil(memory * 1024)}M"] if memory else []
    found += [f"--gpus-per-node={job.gpus}"] if job.gpus else []
    found += [f"--partition={partition}"] if partition else []
    found += [f"--time={options.time}"] if options.time else []
    return [*map(_quoted, found), *options.further.get(job.name, ())]


def _quoted(option: str) -> str:
    return f'"{option}"' if " " in option else option


def _connect(config: Config, options: Options, hosts: Hosts, *before: str) -> list[str]:
    """The function with which each start of a process finds the run. The dashboard stays as configured."""
    found = environment(config, hosts, "", options.first_port)
    own = {name: value for name, value in found.items() if name not in ("RHYMED_NET__HTTP", KEYS)}
    return _function("connect", *before, *(f'export {name}="{value}"' for name, value in own.items()))


def _process(seat: Seat, options: Options, *calls: str) -> list[str]:
    """The function that starts it, with a folder that has the keys of its role alone."""
    return _function(seat.name, f'export {KEYS}="$FOLDER/keys/{seat.role}"', "connect", *calls)


def _function(name: str, *lines: str) -> list[str]:
    return [f"{name}() {{", *(f"  {line}" for line in lines), "}"]


def _command(seat: Seat, options: Options, number: int | None = None, shown: str = "") -> str:
    """`shown`: what the shell knows in place of the process's number, e.g. `$SLURM_NODEID`."""
    words = seat.command(CONFIG, number, ())[:-1]
    if shown:
        words = [shown if word == f"{number}" else word.replace(f"-{number}", f"-{shown}") for word in words]
    return " ".join(["exec", shlex.join(options.program), *words, f'"$FOLDER/{CONFIG}"'])


def _head(job: Job, config: Config, options: Options) -> list[str]:
    file = f"$FOLDER/{CONFIG}"
    copies = uploader(config, file, options.program, "--take-over")
    last = uploader(config, file, options.program, "--once")
    others = ["store", "uploader"] if copies else ["store"]
    return [
        'rm -f "$FOLDER/ended"',
        'HEAD=$(hostname) && echo "$HEAD" > "$FOLDER/head.new" && mv "$FOLDER/head.new" "$FOLDER/head"',
        *_connect(config, options, Hosts("$HEAD", "$HEAD", "$HEAD")),
        *(line for one in job.seats for line in _process(one, options, _command(one, options))),
        *(_function("uploader", f"exec {_words(copies)}") if copies else []),
        *REQUIRE,
        f"watch -s {LEAVE_S} &",
        "required=$!",
        *(line for name in others for line in (f"require {name} &", 'required="$required $!"')),
        "keep broker",
        "status=$?",
        'if [ -z "$ending" ]; then touch "$FOLDER/ended"; fi # the run is over: what starts from now on ends at once',
        "kill -TERM $required 2> /dev/null",
        "wait $required",
        *([f'if [ -z "$ending" ]; then {_words(last)} || status=$?; fi'] if last else []),
        'if [ -s "$FOLDER/ended" ]; then',
        '  read -r status name < "$FOLDER/ended"',
        '  echo "the run ends because $name did, with status $status: its output in $FOLDER says why" >&2',
        "fi",
        "exit $status",
    ]


def _words(command: Sequence[str]) -> str:
    """For the shell, which puts in the folder's name."""
    *words, file = command
    return f'{shlex.join(words)} "{file}"'


def _worker(job: Job, config: Config, options: Options) -> list[str]:
    seat = job.seats[0]
    reads = 'until HEAD=$(cat "$FOLDER/head" 2> /dev/null); do sleep 2; done'
    if seat.kind == "elastic":
        call = _command(seat, options, 1, "$SLURM_ARRAY_TASK_ID")
        found = _connect(
            config, options, Hosts("$HEAD", "$HEAD", "$HEAD"), reads
        )  # the trainer names its own address
        kept = f"work {seat.name} {seat.name}-$SLURM_ARRAY_TASK_ID {seat.count}"
        return [*WORK, *found, *_process(seat, options, call), kept]
    found = _connect(config, options, Hosts("$HEAD", "$HEAD", "$TRAINER"), reads)
    if job.nodes == 1:
        call = _command(seat, options, 0)
        return [*WORK, "TRAINER=$(hostname)", *found, *_process(seat, options, call), "work trainer trainer-0 1"]
    calls = [_command(seat, options, 0), _command(seat, options, 1, "$SLURM_NODEID")]
    call = f'if [ "$SLURM_NODEID" = 0 ]; then {calls[0]}; else {calls[1]}; fi'
    return [
        *WORK,
        'export FOLDER TRAINER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        *found,
        *_process(seat, options, call),
        f"export -f keep watch work connect {seat.name}",
        "# --wait: the other nodes would wait for a next trainer when the first one's has left at the end of the run",
        'srun --kill-on-bad-exit=0 --wait=30 --cpus-per-task="$SLURM_CPUS_PER_TASK"'
        " bash -c 'work trainer trainer-$SLURM_NODEID 1' ||",
        '  [ -e "$FOLDER/ended" ] && [ ! -s "$FOLDER/ended" ] # then all is well, although Slurm ended the others',
    ]


QUEUED = "PENDING,CONFIGURING,RUNNING,SUSPENDED"  # a job that was just cancelled is none of these


def submission(planned: Sequence[Job], config: Config, options: Options) -> str:
    """The script that submits all jobs; submitted again, the run continues where it was."""
    names = ",".join(job_name(config, job.name) for job in planned)
    folder = quoted(options.folder)
    lines = [
        "#!/bin/sh",
        f"# Submits the run. To end it: scancel --name={names}",
        "set -e",
        f"cd {folder}",
        f'queued=$(squeue --noheader --user="$(id -un)" --states={QUEUED} --name={quoted(names)})',
        'if [ -n "$queued" ]; then',
        '  echo "the run is in the queue already: end it by scancel, or give this one another run.name" >&2',
        "  exit 1",
        "fi",
        "rm -rf head ended failed # of an earlier start",
        "ids=",
        "trap '[ -z \"$ids\" ] || scancel $ids' EXIT # a job is refused: none of the run is left",
        "trap 'exit 1' HUP INT TERM",
        f"job=$(sbatch --parsable {HEAD}.sbatch)",
        f'echo "$job {HEAD}"',
        "head=${job%%;*}",
        "ids=$head",
    ]
    for job in planned[1:]:
        lines += [
            f"job=$(sbatch --parsable --dependency=after:$head {job.name}.sbatch)",
            f'echo "$job {job.name}"',
            'ids="$ids ${job%%;*}"',
        ]
    return "\n".join([*lines, "trap - EXIT"]) + "\n"


# Functions of Slurm's batch scripts, for bash. They share a folder, `$FOLDER`, whose file `ended` ends the run.
#
# `ended` has the exit status and the name of the process with which the run ended; it is empty at the usual end.

KEEP = """
keep() { # starts a process again when it fails, but not after status 2, which only a person can cure
  local failures=0 begun status child
  ending=
  trap 'ending=yes; kill -TERM $child 2> /dev/null' TERM # Slurm ends this job: the process gives back what it holds
  until [ -n "$ending" ] || [ -e "$FOLDER/ended" ]; do
    begun=$SECONDS
    "$@" &
    child=$!
    wait $child
    status=$?
    while [ -n "$ending" ] && kill -0 $child 2> /dev/null; do
      wait $child
      status=$?
    done
    if [ -n "$ending" ] || [ $status = 0 ] || [ $status = 2 ]; then return $status; fi
    if [ $((SECONDS - begun)) -gt 60 ]; then failures=0; fi
    failures=$((failures + 1))
    if [ $failures -ge 10 ]; then return $status; fi
    echo "$1 ended with status $status: starting it again in $((failures * 3)) s" >&2
    sleep $((failures * 3)) &
    wait $!
  done
}
""".splitlines()

WATCH = """
watch() { # ends this job $2 seconds after the run ended: with $1 -s by a process of it, with -e in any way
  until [ $1 "$FOLDER/ended" ]; do
    sleep 2 &
    wait $!
  done
  sleep $2 &
  wait $!
  kill -TERM $$
}
""".strip().splitlines()

WORK = """
work() { # keeps a worker, named $2; the run ends when $3 of its role have ended with status 2
  rm -f "$FOLDER/failed/$2"
  watch -s 0 &
  local watchers=$! status
  # A worker that started when the broker had just left would wait for it. The trainer may save for a long time.
  if [ $1 != trainer ]; then watch -e 30 & watchers="$watchers $!"; fi
  keep $1
  status=$?
  kill $watchers 2> /dev/null
  if [ $status = 2 ] && [ -z "$ending" ]; then
    mkdir -p "$FOLDER/failed" && touch "$FOLDER/failed/$2"
    local failed=$(ls "$FOLDER/failed" | grep -c "^$1-")
    if [ $failed -ge $3 ] && [ ! -e "$FOLDER/ended" ]; then echo "2 $2" > "$FOLDER/ended"; fi
  fi
  return $status
}
""".strip().splitlines()

REQUIRE = """
require() { # keeps a process, with which the run ends when it cannot be kept
  keep $1
  local status=$?
  if [ -n "$ending" ] || [ $status = 0 ]; then return 0; fi
  if [ $status != 2 ] && [ $1 = uploader ]; then return 0; fi # the run continues without a copy
  echo "$status $1" > "$FOLDER/ended"
}
""".strip().splitlines()
