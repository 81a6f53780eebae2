"""`rhymed prepare`: downloads a run's model and reads its dataset, where the libraries are installed."""

from __future__ import annotations

import argparse
import sys

from rhymed.core.output import show
from rhymed.start.cli.options import add_config, add_examples, read_config


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(parser, "rhymed prepare configs/quickstart.toml")
    add_config(parser)


def handle(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    from rhymed.core.run import provenance
    from rhymed.core.run.layout import layout_of
    from rhymed.inputs.prepared import file_of, prepare
    from rhymed.inputs.quantised import base_of
    from rhymed.start.launch.rows import lengths_of

    folder = layout_of(config).folder
    if config.trainer.engine == "torch" or config.rollout.engine == "vllm":
        show(f"model  {base_of(config)}", flush=True)
    datasets = [*(config.data.parts if config.trainer.steps != 0 else []), *config.eval.datasets]
    lengths = lengths_of(config, datasets)
    for data in datasets:
        show(f"rows   {prepare(config, folder, data, lengths)} in {file_of(config, folder, data)}", flush=True)
    provenance.note(folder, provenance.now(sys.argv[1:], config, prepared=True))
    return 0
