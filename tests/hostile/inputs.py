"""`python -m tests.hostile.inputs`: does every configuration, dataset, reward and command line end well?

Generated inputs, odd and damaged ones above all, go into the real functions and commands, in this process, so that a
minute tries thousands. Every outcome is a success or one of the errors that are sentences; an exception of another
kind, a traceback in the output, another exit status, or `HANG_S` without an end is a failure. Hypothesis shrinks it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from rhymed.core.config import Config
from rhymed.core.config.explain import _model
from rhymed.core.config.load import load_config
from rhymed.core.errors import HOPELESS
from rhymed.core.run.layout import layout_of
from rhymed.inputs.datasets import load_rows
from rhymed.start.cli import EXIT_MISTAKE, main
from tests.stress import command

HANG_S = 60  # the machine may be busy
SECONDS, QUICK_SECONDS = 300.0, 20.0
ROUND = 200  # inputs of a series with one seed
SCORERS = ("exact", "format", "length_penalty", "math", "none", "regex", "reasoning_gym")
COMMANDS = (
    "check", "checkpoint", "eval", "health", "history", "keygen", "logs", "migrate-config", "report",
    "run", "runs", "steer", "worker", "broker", "store",
)  # fmt: skip
"""Of these, none starts anything without a configuration that works, and there is none."""
WORDS = (
    *("show", "audit", "list", "verify", "export", "import", "backup", "pause", "resume", "drain", "bash", "stats"),
    *("--resume", "--run", "--plain", "--json", "--role", "rollout", "--help", "-o", "--step", "--level", "--since"),
    *("trainer.lr=inf", "run.name=latest", "=", "a.b.c=[", "odd.toml", "odd.json", "rows.jsonl", "damaged", "pipe"),
    *("runs", "runs/latest", ".", "/dev/null", "/proc/self", "0", "-1", "1e999", "9" * 5000, "--insecure", "--out"),
)

plain = st.text(max_size=20) | st.sampled_from(
    ["", "~", "~nobody/x", "../..", "/dev/null", "inf", "\x1b[31m", "a" * 5000]
)
numbers = st.integers() | st.floats() | st.sampled_from([0, 1, -1, 2**31, 2**63, 10**400, 1e308, -0.0])
scalars = st.none() | st.booleans() | numbers | plain
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3), max_leaves=6
)


def keys(model: type[BaseModel] = Config, before: str = "") -> Iterator[str]:
    """All settings, and the sections."""
    for name, field in model.model_fields.items():
        yield before + name
        if (inner := _model(field.annotation)) is not None:
            yield from keys(inner, f"{before}{name}.")


KEYS = tuple(keys())


tame = st.integers(0, 64) | st.floats(0, 1) | st.booleans() | st.sampled_from(["none", "a", "math", "rows.jsonl"])


@st.composite
def overrides(draw: Any) -> list[str]:
    def one() -> str:
        value = draw(tame | values)
        text = draw(st.sampled_from([str(value), json.dumps(value, default=str), repr(value)]))
        return f"{draw(st.sampled_from(KEYS))}={text}"

    return [one() for _ in range(draw(st.integers(0, 3)))]


@st.composite
def damaged(draw: Any, whole: bytes) -> bytes:
    """Bytes of a file with a few places changed, repeated or cut off."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8) | st.sampled_from(PIECES))
    return bytes(content)


PIECES = (
    b"\n",
    b"{",
    b"[" * 2000,
    b'"',
    b"\x00",
    b"\xff\xfe",
    b"NaN",
    b"1e999",
    b"9" * 5000,
    b"=",
    b"\xef\xbb\xbf",
    b"\\ud800",
)
ROWS = b"".join(b'{"prompt": "What is %d + 1?", "answer": "%d"}\n' % (one, one + 1) for one in range(12))
TOML = b"""[data]
path = "rows.jsonl"
[[reward.scorers]]
scorer = "exact"
[[reward.scorers]]
scorer = "format"
weight = 0.5
[rollout]
engine = "trace"
group_size = 4
[trainer]
engine = "trace"
betas = [0.9, 0.99]
"""

rows_files = (
    damaged(ROWS)
    | st.binary(max_size=200)
    | st.lists(values, max_size=8).map(lambda rows: "\n".join(json.dumps(row, default=str) for row in rows).encode())
)
odd_objects = st.complex_numbers() | st.binary() | st.sampled_from([10**5000, -(10**5000), object(), {1}, type])
parts = st.sampled_from(["score", "reward", "token_rewards", "turn_rewards", "other"])
results = values | odd_objects | st.dictionaries(parts, values | odd_objects, max_size=4)
arguments = st.lists(st.sampled_from(WORDS) | plain.filter(lambda text: "\0" not in text), max_size=5)


outcomes: Counter[str] = Counter()
"""Successes and sentences since the start."""


class Failure(AssertionError):
    """An outcome that is neither a success nor a sentence."""


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Ends it as Ctrl-C does, since event loops only log other errors of signal handlers."""
    is_late = False

    def late(number: int, frame: FrameType | None) -> None:
        nonlocal is_late
        is_late = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(HANG_S)
    try:
        yield
    except KeyboardInterrupt:
        if not is_late:
            raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if is_late:
        raise Failure(f"no end within {HANG_S} s")


def sentence(work: Callable[[], Any]) -> Any:
    """Its result; None if it ended in a sentence."""
    with in_time():
        try:
            result = work()
            outcomes["successes"] += 1
            return result
        except HOPELESS as error:
            said = str(error).strip()
    if not said:
        raise Failure("an error without a word")
    outcomes["sentences"] += 1
    return None


def called(*argv: str) -> int:
    """Exit status of the command."""
    out, err = io.StringIO(), io.StringIO()
    with in_time(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([*argv] or ["--help"])
        except SystemExit as error:
            status = int(error.code or 0) if not isinstance(error.code, str) else 1
    said = out.getvalue() + err.getvalue()
    if status not in (0, 1, EXIT_MISTAKE) or (status and not said.strip()) or "Traceback (most recent" in said:
        raise Failure(f"{argv}: status {status}: {said[-2000:]}")
    outcomes["sentences" if status else "successes"] += 1
    return status


# What is tried


def try_configuration(content: bytes, changes: list[str]) -> None:
    Path("odd.toml").write_bytes(content)
    config = sentence(lambda: load_config(Path("odd.toml"), changes, {}))
    if config is not None and sentence(lambda: layout_of(config)) is not None:
        text = config.model_dump_json()
        assert Config.model_validate_json(text) == config, "a process would read another configuration"


def try_dataset(content: bytes, name: str) -> None:
    Path(name).write_bytes(content)
    config = Config.model_validate({"data": {"path": name}, "rollout": {"prompts_per_step": 2}})
    rows = sentence(lambda: load_rows(config))
    if rows is not None:
        json.dumps(rows, allow_nan=False).encode()  # it is sent and stored


def try_reward(scorer: str, args: Any, response: str, row: Any) -> None:
    from rhymed_workers.reward.scorers.load import load_scorers

    tree = {"data": {"path": "rows.jsonl"}, "reward": {"scorer": scorer, "args": args}}
    if scorer == "reasoning_gym":
        tree["data"] = {"size": 8}
    try:
        config = Config.model_validate(tree)
    except ValueError:
        return
    loaded = sentence(lambda: list(load_scorers(config).values()))
    for function in loaded or ():
        sentence(lambda function=function: function(response, row, (1, 2)))


def try_result(value: Any) -> None:
    """What a user's reward function returned."""
    from rhymed_workers.reward.scorers.result import read

    for optional in (False, True):
        sentence(lambda optional=optional: read(value, "odd", (1, 2), (1,), optional=optional))


def try_command(name: str, words: list[str]) -> None:
    called(name, *words)


TRIES: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "configurations": (try_configuration, (st.just(TOML) | damaged(TOML), overrides())),
    "datasets": (try_dataset, (rows_files, st.sampled_from(["rows.jsonl", "rows.json"]))),
    "rewards": (
        try_reward,
        (
            st.sampled_from(SCORERS),
            st.just({}) | st.dictionaries(plain, values, max_size=2),
            st.text(max_size=200),
            st.fixed_dictionaries({"prompt": plain}, optional={"answer": values, "metadata": values}),
        ),
    ),
    "results": (try_result, (results,)),
    "commands": (try_command, (st.sampled_from(COMMANDS), arguments)),
}


READERS = (
    *("history show {}", "history audit {}", "history stats {}", "history export {} -", "checkpoint list {}"),
    *("logs {}", "logs {} --level warning --json", "runs .", "runs {}", "run --resume {}", "eval {}"),
    "migrate-config {}/config.json",
)
"""Commands that read a run's folder."""
CONFIG = {"data": {"path": "rows.jsonl"}, "model": {"path": "./nowhere"}, "trainer": {"steps": 3}}  # it cannot start
STEP = '{"step": %d, "time": 1e9, "reward/mean": 0.5}\n'
FILES = {
    "config.json": Config.model_validate(CONFIG).model_dump_json(),
    "metrics.jsonl": "".join(STEP % step for step in range(3)),
    "timeline.jsonl": '{"t": 1e9, "event": "begun", "step": 0}\n{"t": 1e9, "event": "finished"}\n',
    "logs/run.log": '{"t":"2026-01-01T00:00:00.000Z","level":"info","process":"run","pid":1,"text":"b"}\n',
    "id.json": '["0123456789abcdef"]',
    "end.json": '{"t": 1e9, "reason": "finished"}',
}
"""Of a run, which are damaged one at a time."""


def try_folder(line: str, damage: tuple[str, bytes]) -> None:
    name, content = damage
    file = Path("read") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.write_bytes(content)
        called(*line.format("read").split())
    finally:
        file.write_text(FILES[name])


TRIES["folders"] = (
    try_folder,
    (
        st.sampled_from(READERS),
        st.sampled_from(sorted(FILES)).flatmap(lambda name: st.tuples(st.just(name), damaged(FILES[name].encode()))),
    ),
)


@contextlib.contextmanager
def place() -> Iterator[None]:
    """A folder of its own with what words of command lines may mean, among them a damaged run."""
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="rhymed-inputs-"))
    try:
        os.chdir(folder)
        Path("rows.jsonl").write_bytes(ROWS)
        Path("odd.toml").write_bytes(TOML.replace(b"betas", b"beta"))
        Path("odd.json").write_bytes(b'{"trainer": [NaN]}')
        for name, text in FILES.items():
            (Path("read") / name).parent.mkdir(parents=True, exist_ok=True)
            (Path("read") / name).write_text(text)
        run = Path("damaged")
        for file in ("config.json", "metrics.jsonl", "timeline.jsonl", "store/data.mdb", "logs/run.log", "end.json"):
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            (run / file).write_bytes(random.Random(file).randbytes(5000))
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def attempt(name: str, number: int, most: int, until: float = float("inf")) -> int:
    """Tries at most so many inputs of the series with this number; how many it were. Raises what failed."""
    work, strategies = TRIES[name]
    tried = 0

    @seed(number)
    @settings(
        max_examples=most, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(st.tuples(*strategies))
    def each(drawn: tuple[Any, ...]) -> None:
        nonlocal tried
        if time.monotonic() < until:
            tried += 1
            work(*drawn)

    each()
    return tried


def run(quick: bool, seconds: float | None = None, first: int = 0, kinds: str = ",".join(TRIES)) -> dict[str, Any]:
    """Counts of inputs. Raises what failed, after Hypothesis has shrunk it."""
    chosen = kinds.split(",")
    share = (seconds or (QUICK_SECONDS if quick else SECONDS)) / len(chosen)
    counts: Counter[str] = Counter()
    for name in chosen:
        outcomes.clear()
        number, until = first, time.monotonic() + share
        with place():  # a configuration that works would start a run in the series of commands
            while time.monotonic() < until:
                counts[name] += attempt(name, number, ROUND, until)
                number += 1
        print(f"{name:<16} {counts[name]:>10,} inputs, seeds {first} to {number - 1}: {dict(outcomes)}", flush=True)
    return dict(counts)


def cli() -> int:
    parser = command.parser(
        "tests.hostile.inputs", "try generated configurations, datasets, rewards and command lines"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help=f"in all (default: {SECONDS:.0f})")
    parser.add_argument("--first", type=int, metavar="N", help="seed of the first series (default: 0)")
    parser.add_argument("--kinds", help=f"default: {','.join(TRIES)}")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(cli())
