"""Removes every file and folder that a run makes, one after another, in the middle of the run.

After each removal the run must heal, which means that it trains further steps, also after every process that may die
was killed; or it must end cleanly: in seconds, with a sentence, a status and no traceback. Where the store itself was
left alone, no sample that it acknowledged may be lost. The run is one of the trace engine, as real processes; where
key files are removed, its links are TCP with keys, and its dashboard has a token. Prints what became of each place.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rhymed.core.errors import RhymedError
from rhymed.core.run.layout import ADDRESS_FILE
from rhymed.core.wire.keys import PUBLIC, ROLES, make_keys, secret_name
from rhymed.show.dashboard.auth import TOKEN_FILE
from tests.ports import free_ports
from tests.stress import command
from tests.stress.run import LiveRun, Shape

NAME = "tests.hostile.remove"
HEAL_S = 30.0  # on a machine that trains a step in `STEP_S`
STEP_S = 0.5
SLOW = 3  # times that: an end may need the start of a process first, while the machine does other things
LONGEST_S = 300.0
MORE_STEPS = 3  # after a removal, and again after a restart of every process
STEPS = 100_000  # the run is ended from outside
MORTAL = (("rollout",), ("reward",), ("trainer",), ("broker",), ("store",))
"""Processes that are killed together, one group after another, once the run has healed."""
QUICK_MORTAL = (("rollout", "reward", "trainer"),)
EVENTS = "events.out.tfevents"  # then time, host and process id
KEYS = ("keys", *(f"keys/{name}" for name in (PUBLIC, *map(secret_name, ROLES))))
LOCKED = (TOKEN_FILE, *KEYS)
"""Places of a run with keys."""
RETURN = ("config.json", "id.json", "lock", "lease.json", ADDRESS_FILE, TOKEN_FILE, "sockets", "sockets/broker")
"""They are made again, and no later than a run has to heal."""
BACK = {"checkpoints": "checkpoints/step-*"}
"""Place -> what has to be there again before a process is killed: until then nothing covers what was trained."""
QUICK = ("logs", "logs/*.out", "sockets", "sockets/broker", "shm/*.safetensors", "shm", "store", "checkpoints", ".")
QUICK_LOCKED = (TOKEN_FILE, f"keys/{PUBLIC}")


@dataclass
class Outcome:
    place: str
    healed: bool  # else it ended
    seconds: float  # until it trained further steps, or ended
    killed_s: float = 0.0  # from the last kill until the same
    status: int | None = None
    sentence: str = ""
    wrong: str = ""  # what must not be

    def __str__(self) -> str:
        what = "healed" if self.healed else f"ended ({self.status}): {self.sentence}"
        killed = f", and {self.killed_s:.0f} s after a kill" if self.killed_s else ""
        wrong = f"   WRONG: {self.wrong}" if self.wrong else ""
        return f"{self.place}: {what} after {self.seconds:.0f} s{killed}{wrong}"


class Places:
    """Where a run makes files, under short names: its folder, `sockets/` and `shm/`; `keys/` was made for it."""

    def __init__(self, run: LiveRun) -> None:
        self.keys = run.where.keyfolder
        self.folder, self.sockets = run.where.folder, run.where.sockets
        name = hashlib.blake2b(bytes((self.folder / "weights").resolve()), digest_size=6).hexdigest()
        self._shm = Path("/dev/shm") / f"rhymed-{name}"

    @property
    def shm(self) -> Path:
        """Its name ends as nobody can guess, once it is there."""
        return next(self._shm.parent.glob(f"{self._shm.name}-*"), self._shm)

    def all(self) -> list[str]:
        """Of a folder whose files have numbers in their names, one file."""
        found: dict[str, None] = {}
        for prefix, root in (("", self.folder), ("sockets/", self.sockets), ("shm/", self.shm)):
            for path in [root, *root.rglob("*")]:
                inside = path.relative_to(root).as_posix()
                parts = [_pattern(part) for part in inside.split("/")]
                found[(prefix + "/".join(parts)).removesuffix("/.")] = None
        return sorted(found)

    def paths(self, place: str) -> list[Path]:
        """What there is of this name now."""
        first, _, rest = place.partition("/")
        root = {"sockets": self.sockets, "shm": self.shm, "keys": self.keys}.get(first)
        root, inside = (self.folder, place) if root is None else (root, rest)
        if inside in ("", "."):
            return [root] if root is not None and root.exists() else []
        return sorted(root.glob(inside), reverse=True)

    def remove(self, place: str) -> bool:
        """False: there is nothing of this name now."""
        return any([_remove(path) for path in self.paths(place)])


def _pattern(part: str) -> str:
    """Of a name with a number, a pattern: files of other steps, or of another process, are of the same kind."""
    head, dot, tail = part.partition(".")
    if part.startswith(EVENTS):
        return f"{EVENTS}.*"
    if head.startswith(("step-", "version-")):
        return head.partition("-")[0] + "-*" + dot + tail
    return part


def _remove(path: Path) -> bool:
    """False: it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # files may come and go meanwhile
        return True
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


class Walk:
    """One run after another, each until a removal has ended it."""

    def __init__(self, folder: Path, mortal: Sequence[Sequence[str]] = MORTAL) -> None:
        self._folder, self._mortal, self._count = folder, mortal, 0
        self.run: LiveRun | None = None
        self._locked = False  # whether that run has keys

    def close(self) -> None:
        if self.run is not None:
            self.run.interrupt()
        self.run = None

    def living(self, *, locked: bool = False) -> LiveRun:
        if self.run is None or self.run.status is not None or self._locked != locked:
            self.close()
            self._locked = locked
            self._count += 1
            settings: dict[str, dict[str, Any]] = {
                "trainer": {"checkpoint_every": 2, "keep_checkpoints": 2},
                "rollout": {"save_every_s": 0.5},
                "trace": {"mean_length": 20},
                "net": self._keys() if locked else {"http": "127.0.0.1:0"},
            }
            shape = Shape(steps=STEPS, rollout=2, reward=1, prompts=64, settings=settings)
            self.run = LiveRun(shape.write(self._folder, f"run-{self._count}"))
            self.run.start()
            self._wait(lambda: trained(self.run) >= MORE_STEPS + 2, LONGEST_S)
        return self.run

    def _keys(self) -> dict[str, str]:
        """Settings of links with new keys, and of a dashboard with a token."""
        keys = self._folder / f"keys-{self._count}"
        make_keys(keys, ROLES)
        names = ("broker", "store", "weights")
        ports = zip(names, free_ports(len(names)), strict=True)
        return {"keys": str(keys), "http": "0.0.0.0:0"} | {name: f"tcp://127.0.0.1:{port}" for name, port in ports}

    def places(self) -> list[str]:
        run = self.living()
        self._wait((run.where.folder / ADDRESS_FILE).exists, HEAL_S)  # the last file that appears
        return [*Places(run).all(), *LOCKED]

    def remove(self, place: str) -> Outcome | None:
        """None: there is nothing of this name."""
        run = self.living(locked=place in LOCKED)
        if place == TOKEN_FILE:
            self._wait((run.where.folder / TOKEN_FILE).exists, LONGEST_S)
        stored, limit_s, began = samples(run), self._limit_s(), time.monotonic()
        if not Places(run).remove(place):
            return None
        healed = self._wait(lambda: self._grows(run), limit_s) and run.status is None
        found = Outcome(place, healed, round(time.monotonic() - began, 1))
        if healed:
            found.wrong = self._untold(run, place, limit_s)
        for roles in self._mortal:
            if not healed or found.wrong:
                break
            killed = time.monotonic()
            for part in [part for part in run.parts() if part.role in roles]:
                kill(part.pid)
            healed = self._wait(lambda: self._grows(run), LONGEST_S) and run.status is None
            found.killed_s = round(time.monotonic() - killed, 1)
        found.healed, found.status = healed, run.status
        if not healed:
            found.sentence = _sentence(run)
            found.wrong = found.wrong or self._wrong_end(run, found, SLOW * limit_s)
            if not found.wrong and max(found.seconds, found.killed_s) > SLOW * limit_s:
                found.wrong = f"it took more than {SLOW * limit_s:.0f} s to end"
        if not found.wrong and not place.startswith("store") and place != ".":
            found.wrong = self._lost(run, stored)
        return found

    def _untold(self, run: LiveRun, place: str, limit_s: float) -> str:
        """What was removed has to be there again."""
        back = place if place in RETURN else BACK.get(place)
        if back is not None and not self._wait(lambda: bool(Places(run).paths(back)), limit_s):
            return "it was not made again"
        return ""

    def _limit_s(self) -> float:
        """`HEAL_S`, longer where the machine is slower."""
        run = self.run
        assert run is not None, "it was started"
        began = time.monotonic()
        self._grows(run, begin=True)
        self._wait(lambda: self._grows(run), LONGEST_S)
        step_s = (time.monotonic() - began) / MORE_STEPS
        self._grows(run, begin=True)
        return min(LONGEST_S, HEAL_S * max(1.0, step_s / STEP_S))

    _from = 0

    def _grows(self, run: LiveRun, *, begin: bool = False) -> bool:
        """Whether it has trained `MORE_STEPS` since the last time that this was true."""
        now = trained(run)
        if begin or now >= self._from + MORE_STEPS or now < self._from - 2:  # the file was removed: it counts again
            self._from = now
            return not begin and now > 0
        return False

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """False: the run has ended, or the limit was reached."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if self.run is None or self.run.status is not None:
                return False
            if condition():
                return True
            time.sleep(0.1)
        return False

    def _wrong_end(self, run: LiveRun, found: Outcome, patience_s: float) -> str:
        status = run.wait(patience_s)
        found.status = status
        output = run.output.read_text(errors="replace")
        if status is None:
            tail = " | ".join(output.splitlines()[-4:])
            return f"neither healed nor ended; it says: {tail}"
        found.sentence = _sentence(run)
        if "Traceback" in output:
            return "a traceback"
        if status not in (1, 2) or "run failed: " not in output:
            return f"status {status} without a sentence"
        return ""

    def _lost(self, run: LiveRun, before: int) -> str:
        if (now := samples(run)) < before:
            return f"{before - now} acknowledged samples are lost"
        return ""


def trained(run: LiveRun | None) -> int:
    """Steps, from the last line of the metrics."""
    assert run is not None, "it was started"
    with suppress(OSError, ValueError, IndexError):
        return int(json.loads(run.where.metrics.read_bytes().splitlines()[-1])["step"]) + 1
    return 0


def samples(run: LiveRun) -> int:
    with suppress(RhymedError, OSError), run.browse() as browse:
        return browse.totals().samples
    return 0


def logged(run: LiveRun) -> str:
    return "".join(file.read_text(errors="replace") for file in run.where.folder.glob("logs/*.log"))


def kill(pid: int) -> None:
    subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)


def _sentence(run: LiveRun) -> str:
    output = run.output.read_text(errors="replace")
    return output.rpartition("run failed: ")[2].partition("\n")[0] if "run failed: " in output else ""


def run(quick: bool = False, only: str = "", keep: bool = False) -> dict[str, Any]:
    """`only`: places, with commas between them; `quick`: representative ones."""
    folder = Path(tempfile.mkdtemp(prefix="rhymed-remove-"))
    walk, found = Walk(folder, QUICK_MORTAL if quick else MORTAL), list[Outcome]()
    try:
        places = only.split(",") if only else [*QUICK, *QUICK_LOCKED] if quick else walk.places()
        print(f"{len(places)} places: {', '.join(places)}", flush=True)
        for place in places:
            outcome = walk.remove(place)
            if outcome is None:  # it was removed with its folder; another run has made it again
                walk.close()
                outcome = walk.remove(place)
            if outcome is None:
                print(f"{place}: is not there now", flush=True)
                continue
            found.append(outcome)
            print(outcome, flush=True)
            if outcome.wrong:
                walk.close()
        healed = sum(one.healed for one in found)
        print(f"{len(found)} places of {len(places)}: {healed} healed, {len(found) - healed} ended", flush=True)
    finally:
        walk.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return {"good": not any(one.wrong for one in found), "places": [asdict(one) for one in found]}


def main() -> int:
    parser = command.parser(NAME, __doc__ or "")
    parser.add_argument("--only", metavar="PLACES", help="these alone, e.g. 'logs/*.out,sockets'")
    parser.add_argument("--keep", action="store_true", help="leave the runs' folders where they are")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
