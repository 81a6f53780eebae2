"""`python -m tests.hostile.protocol.search`: does the protocol hold, whatever which peer sends in which order?

hypothesis draws histories of honest and dishonest peers (`actions`), plays them against the real broker and store
over real sockets (`play`), and makes a history that fails shorter (`shrink`). That history is appended to a file;
`test_protocol.py` plays those of `histories.jsonl` again. The histories of a seed are the same on every machine.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from rhymed.core.wire.keys import ROLES, make_keys
from tests.hostile.protocol import actions
from tests.hostile.protocol.actions import KEPT, History, histories
from tests.hostile.protocol.play import play
from tests.hostile.protocol.shrink import shrink
from tests.stress import command

SECONDS = 3600.0
QUICK_S = 60.0
A_ROUND = 10  # histories of one seed
MOST = 5  # faults, then the search ends
SHRINK_S = 300.0  # at most, for one fault


class _Search:
    """Plays histories until the time is over, and counts."""

    def __init__(self, keys: Path, began: float, seconds: float) -> None:
        self.keys, self.seconds, self.ends_at = keys, seconds, began + seconds
        self.histories = self.steps = self.requests = self.trained = 0
        self.failed: History | None = None  # the last one that did

    def play(self, history: History) -> None:
        if time.monotonic() > self.ends_at:
            return  # the rest of the round
        try:
            played = play(history, self.keys)
        except Exception as error:
            self.failed = history._replace(why=str(error))
            raise
        self.histories += 1
        if played is not None:
            self.steps += played.actions
            self.requests += played.requests
            self.trained += played.trained

    def round(self, number: int) -> History | None:
        """The histories of one seed; the one that failed, shrunk."""
        self.failed = None
        checked = seed(number)(_SETTINGS(given(histories)(self.play)))
        try:
            checked()
        except Exception:
            assert self.failed is not None, "hypothesis itself failed"
            self.shrink(self.failed)
        return self.failed

    def shrink(self, failed: History) -> None:
        ends_at = time.monotonic() + min(SHRINK_S, self.seconds)
        shrink(failed, self._fails, lambda: time.monotonic() < ends_at)

    def _fails(self, history: History) -> bool:
        try:
            play(history, self.keys)
        except Exception as error:
            self.failed = history._replace(why=str(error))
            return True
        return False


_SETTINGS = settings(
    max_examples=A_ROUND,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


def run(
    quick: bool = False,
    seconds: float | None = None,
    seed: int = 0,
    most: int = MOST,
    keep: Path | str = KEPT,
    rounds: int = 0,
) -> dict[str, Any]:
    """Measures and prints. `good: False` if a history failed. `rounds`: end after so many seeds; 0: any number."""
    began = time.monotonic()
    faults: list[str] = []
    logging.disable(logging.CRITICAL)  # what servers log of dishonest peers
    try:
        with tempfile.TemporaryDirectory(prefix="rhymed-protocol-") as folder:
            keys = Path(folder) / "keys"
            make_keys(keys, ROLES)
            search = _Search(keys, began, seconds or (QUICK_S if quick else SECONDS))
            _rounds(search, itertools.islice(itertools.count(seed), rounds or None), most, Path(keep), faults)
    except KeyboardInterrupt:
        print("interrupted; until then:")
    finally:
        logging.disable(logging.NOTSET)
    result = {
        "good": not faults,
        "seed": seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "histories": search.histories,
        "steps": search.steps,
        "requests": search.requests,
        "trained_steps": search.trained,
        "faults": faults,
    }
    for name, value in result.items():
        print(f"{name:<16} {value}", flush=True)
    return result


def _rounds(search: _Search, seeds: Iterable[int], most: int, keep: Path, faults: list[str]) -> None:
    for number in seeds:
        if (failed := search.round(number)) is not None:
            actions.keep(failed, keep)
            faults.append(f"seed {number}: {failed.why}")
            print(f"seed {number} failed: {failed.why}\n  kept in {keep}", flush=True)
            print("".join(f"  {action}\n" for action in failed.actions), end="", flush=True)
        else:
            print(f"seed {number}: {search.histories} histories, {search.steps} steps", flush=True)
        if len(faults) >= most or time.monotonic() > search.ends_at:
            return


def main() -> int:
    parser = command.parser("tests.hostile.protocol.search", "play histories of honest and dishonest peers")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"how long (default: {SECONDS:g})")
    parser.add_argument("--seed", type=int, metavar="N", help="of the first histories")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"end after so many seeds of {A_ROUND} histories")
    parser.add_argument("--most", type=int, metavar="N", help=f"end after so many faults (default: {MOST})")
    parser.add_argument("--keep", metavar="FILE", help=f"append histories that failed to it (default: {KEPT.name})")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
