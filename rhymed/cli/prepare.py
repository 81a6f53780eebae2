"""`rhymed prepare`: downloads the model and reads the dataset before a run, where the libraries are installed."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rhymed.cli.options import add_config, add_examples, make_parser, read_config
from rhymed.output import show


def add(commands: Any) -> None:
    parser = make_parser(
        commands,
        "prepare",
        "download a run's model and read its dataset, for a broker without these libraries",
        handle,
    )
    add_examples(parser, "rhymed prepare configs/quickstart.toml")
    add_config(parser)


def handle(arguments: argparse.Namespace) -> int:
    config = read_config(arguments)
    from rhymed.inputs.models import resolve_model
    from rhymed.inputs.prepared import file_of, prepare
    from rhymed.launch.rows import lengths_of
    from rhymed.run import provenance
    from rhymed.run.layout import layout_of

    folder = layout_of(config).folder
    if config.trainer.engine == "torch" or config.rollout.engine == "vllm":
        show(f"model  {resolve_model(config)}", flush=True)
    datasets = [*(config.data.parts if config.trainer.steps != 0 else []), *config.eval.datasets]
    lengths = lengths_of(config, datasets)
    for data in datasets:
        show(f"rows   {prepare(config, folder, data, lengths)} in {file_of(config, folder, data)}", flush=True)
    provenance.note(folder, provenance.now(sys.argv[1:], config))
    return 0
