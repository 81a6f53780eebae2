"""`rhymed drafter`: fits the learned head that drafts in addition to history."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.start.cli.options import add_examples, count, make_parser, print_json


def add(top: argparse.ArgumentParser) -> None:
    add_examples(
        top,
        "rhymed drafter fit runs/quickstart",
        "rhymed drafter fit runs/quickstart --out head.safetensors --samples 1024",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = make_parser(verbs, "fit", "train a head on a run's newest samples, under its newest checkpoint", handle)
    add_examples(parser, "rhymed drafter fit runs/quickstart", "rhymed run next.toml -o drafts.method=history+head")
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder; the run may be alive")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: drafts.head of the run, else head.safetensors in its folder",
    )
    parser.add_argument("--samples", type=count, default=256, metavar="N", help="the newest ones (default: 256)")
    parser.add_argument("--passes", type=count, default=8, metavar="N", help="over the samples (default: 8)")
    parser.add_argument(
        "--vocabulary", type=count, default=2048, metavar="N", help="tokens it drafts (default: 2048)"
    )
    parser.add_argument("--new", action="store_true", help="do not begin at the head that FILE has")
    parser.add_argument("--spare", action="store_true", help="at the lowest priority, on one core: a run goes first")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, for programs")


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.core.config.load import load_run
    from rhymed.core.run.folder import no_run
    from rhymed.histospec.heads.fit import Fitting
    from rhymed.histospec.heads.model import describe
    from rhymed.histospec.heads.place import head_file
    from rhymed.histospec.heads.run import Options, fit_run

    folder: Path = arguments.run
    if not (folder / "config.json").exists():
        raise ConfigError(no_run(folder))
    out = arguments.out or head_file(load_run(folder), folder)
    if arguments.spare:
        _be_spare()
    options = Options(
        samples=arguments.samples,
        vocabulary=arguments.vocabulary,
        fitting=Fitting(passes=arguments.passes),
        again=not arguments.new,
    )
    fitted = fit_run(
        folder, out, options, (lambda line: None) if arguments.json else lambda line: show(line, flush=True)
    )
    if arguments.json:
        print_json({"head": str(out), "version": fitted.version, "samples": fitted.samples, **fitted.score._asdict()})
        return 0
    show(f"right    {fitted.score}: of the first, second, … drafted token; in brackets: the most probable token's")
    show(f"{out}: {describe(fitted.head)}")
    return 0


def _be_spare() -> None:
    """Before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.nice(19)
