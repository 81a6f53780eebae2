"""The process of one sink: `python -m rhymed_broker.telemetry wandb runs/mine/config.json` sends all unsent rows.

With `--live`, as the broker starts it, it continues until its stdin ends; "finished" on stdin means that the run is
over. A call into the sink's package that takes too long ends the process, which can then be restarted.

`Sender` follows the metrics, and `SampleTables` adds a table of samples to each step.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import select
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError, RhymedError
from rhymed.core.output import show
from rhymed.core.secret import redacted
from rhymed.core.text import parts_text, truncated
from rhymed.inputs.models import tokenizer_of_run
from rhymed.inputs.rows import prompt_text
from rhymed_broker.telemetry import SINKS, MetricsRow, RunDescription, SampleRow, open_sink
from rhymed_broker.telemetry.follow import Bookmark, rows
from rhymed_store.browse import Response, StoreReader

POLL_S = 0.5
NICENESS = 10


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rhymed_broker.telemetry", description="Send a run's unsent metrics to a sink."
    )
    parser.add_argument("sink", choices=SINKS)
    parser.add_argument("config", type=Path, help="config.json in the run's folder")
    parser.add_argument("--live", action="store_true", help="continue until stdin ends")
    parser.add_argument("--stall-s", type=float, default=300.0, help="end when one call takes longer (default: 300)")
    options = parser.parse_args(arguments)
    config = _read(options.config)
    if options.live:
        os.nice(NICENESS)
    Sender(options.sink, config, options.stall_s).run(live=options.live)


def _read(file: Path) -> Config:
    try:
        tree = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; name the config.json in a run's folder") from None
    return Config.model_validate(tree)


class Sender:
    """One sink, and the rows that it has not taken yet."""

    def __init__(self, name: str, config: Config, stall_s: float) -> None:
        folder = Path(config.run.folder).expanduser().resolve() / config.run.name
        self._stall_s = stall_s
        self._file = folder / "metrics.jsonl"
        with self._limited():
            self._bookmark = Bookmark(folder / "sinks", name)
            self._tables = SampleTables(folder, config)
            settings = redacted(config.model_dump(mode="json"))
            run = RunDescription(config.run.name, self._bookmark.id, settings, config.metrics, folder)
            self._sink = open_sink(name, run)

    def run(self, *, live: bool) -> None:
        """Sends all rows; `live`: until stdin ends."""
        finished = not live
        for text in _read_stdin() if live else ():
            self._catch_up()
            self._bookmark.mark_working()
            finished = finished or text == b"finished\n"
        while self._catch_up():
            pass
        with self._limited():
            self._sink.close(finished=finished)
        self._bookmark.close()

    def _catch_up(self) -> int:
        """Returns the number of new lines."""
        count = 0
        for row, offset in rows(self._file, self._bookmark.offset):
            count += 1
            if row is not None and row.metrics:
                with self._limited():
                    self._sink.write(row)
                    self._send_samples(row)
            self._bookmark.put(offset)
        return count

    def _send_samples(self, row: MetricsRow) -> None:
        """Without them if they cannot be read: metrics are more than their samples."""
        if not self._tables.wanted or TRAINED not in row.metrics:
            return
        try:
            table = self._tables.of_step(row.step)
        except (RhymedError, OSError) as error:
            show(f"no table of samples for step {row.step + 1}: {error}", file=sys.stderr)
            return
        if table:
            self._sink.samples(row.step, table)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """If the block takes longer than `stall_s`, dumps the threads' stacks and ends the process."""
        faulthandler.dump_traceback_later(self._stall_s, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _read_stdin() -> Iterator[bytes]:
    """Input until its end; b"" at once, and after every `POLL_S` without input."""
    yield b""
    while True:
        ready, _, _ = select.select([0], [], [], POLL_S)
        text = os.read(0, 4096) if ready else b""
        yield text
        if ready and not text:
            return


def _end(status: int) -> NoReturn:
    """At once, without waiting for threads and exit handlers of the sink's package."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# The table of samples that goes with a step's metrics: some prompts with their best and their worst response.
#
# Read from the run's store, next to the living run. Bounded: `metrics.samples` rows, and so many characters of a
# text.

CHARACTERS = 4000  # of a prompt or a response
TRAINED = "reward/mean"
"""A row of metrics with it is of a training step."""


class SampleTables:
    """Of the run in `folder`."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder, self._config = folder, config
        self._most = config.metrics.samples

    @property
    def wanted(self) -> bool:
        return self._most > 0

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(tokenizer_of_run(self._folder, self._config)))

    def of_step(self, step: int) -> list[SampleRow]:
        """Raises `ConfigError` without a store or a tokenizer, `StoreError` for a damaged store."""
        store = self._folder / "store"
        if not store.is_dir():
            raise ConfigError(f"{self._folder} has no store in it")
        rows: list[SampleRow] = []
        with StoreReader(store) as reader:
            browse = reader.browse
            for prompt in browse.prompts_of_step(step, most=self._most):
                found = [one for one in browse.responses(prompt) if one.info.id.step == step]
                text = prompt_text(browse.row(prompt))
                rows += (self._row(text, one) for one in _ends(found))
        return rows[: self._most]

    def _row(self, prompt: str, one: Response) -> SampleRow:
        text = self._tokenizer.decode(one.tokens.tolist(), skip_special_tokens=False)
        reward = None if one.info.reward is None else float(one.info.reward)
        return SampleRow(
            prompt=truncated(prompt, CHARACTERS),
            response=truncated(text, CHARACTERS),
            reward=reward,
            parts=parts_text(one.parts),
            tokens=one.info.length,
            sample=str(one.info.id),
        )


def _ends(found: Sequence[Response]) -> Iterable[Response]:
    """The best one and the worst one; one of them if all rewards are equal."""
    scored = [one for one in found if one.info.reward is not None]
    if not scored:
        return found[:1]
    ordered = sorted(scored, key=lambda one: -float(one.info.reward or 0.0))
    return ordered[:1] if ordered[0].info.reward == ordered[-1].info.reward else (ordered[0], ordered[-1])


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        show(error, file=sys.stderr)
        _end(2)
    except Exception as error:
        traceback.print_exc()
        show(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)  # the last line is the reason
        _end(1)
    _end(0)
