"""`rhymed eval`: mean@k and pass@k of a checkpoint on held-out prompts, through the same engine and rewards.

An evaluation is a run without training steps: the same processes, in its own folder under the run's `eval/`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.core.errors import ConfigError
from rhymed.core.output import show
from rhymed.start.cli.options import add_examples, add_override
from rhymed.start.cli.run import placed, refuse_early, supervise

if TYPE_CHECKING:
    from rhymed.core.config import Config, Lora


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle)
    add_examples(
        parser,
        "rhymed eval my.toml                              # the base model",
        "rhymed eval runs/latest --checkpoint latest",
        "rhymed eval runs/latest --checkpoint 20 -o eval.samples=8",
        "rhymed eval my.toml --checkpoint path/to/model --json > result.json",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file, or a run's folder")
    parser.add_argument(
        "--checkpoint",
        default="",
        metavar="WHICH",
        help="latest, a number of trained steps, or the folder of a model or adapter (default: model.path)",
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    parser.add_argument("--plain", action="store_true", help="no live screen")
    add_override(parser)


def handle(arguments: argparse.Namespace) -> int:
    from rhymed.core.run import folder as runs
    from rhymed.show.summary import evaluation
    from rhymed.start.launch.program import shown

    printed = contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext()
    with printed, shown() as program:
        config, where = runs.create(_prepare(arguments))
        status = supervise(config, where, program, plain=arguments.plain or arguments.json)
    if arguments.json and status == 0:
        show(json.dumps(evaluation(config, where), indent=2))
    return status


def _prepare(arguments: argparse.Namespace) -> Config:
    """The configuration of the evaluation. Everything that can be wrong before a process is started is found here."""
    from rhymed.core.config.load import load_config

    path: Path = arguments.config
    config = load_config(path / "config.json" if path.is_dir() else path, arguments.override)
    if not config.eval.datasets:
        raise ConfigError(f"{path}: there is nothing to evaluate on: add [[eval.datasets]] with name and path")
    config = placed(evaluating(config, arguments.checkpoint))
    refuse_early(config)
    return config


def evaluating(config: Config, checkpoint: str) -> Config:
    """The run that evaluates this checkpoint (empty: the model itself) and trains nothing."""
    from rhymed.core.algorithms import SETTINGS
    from rhymed.core.config import Config
    from rhymed.core.run.layout import layout_of

    label, model, lora = _find(config, checkpoint)
    whole = lora is None and model != config.model.path  # its weights are what a run trained already
    tree = config.model_dump()
    tree["run"] |= {"name": label, "folder": str(layout_of(config).folder / "eval"), "remote": ""}
    tree["model"] |= {"path": model} | ({"quantization": ""} if whole else {})
    tree["eval"] |= {"every": 1, "at_start": True}
    tree["trainer"] |= dict.fromkeys(SETTINGS) | {"algorithm": "grpo", "steps": 0, "warmup_steps": 0}
    tree["trainer"] |= {"critic": {}, "teacher": {}}
    if tree["rollout"]["engine"] == "dataset":  # it answers from the rows
        tree["rollout"]["engine"], tree["data"]["answer_column"] = "vllm", ""
        for dataset in tree["eval"]["datasets"]:
            dataset["answer_column"] = ""
    tree["trainer"]["lora"] = lora and lora.model_dump()
    tree["net"] |= {"broker": "", "store": "", "weights": ""}  # another run may be alive
    tree["metrics"] |= {"sinks": []}  # it would be another run there
    return Config.model_validate(tree)


def _find(config: Config, wanted: str) -> tuple[str, str, Lora | None]:
    """What the evaluation is called, the model's path, and the adapter to merge into it. Raises `ConfigError`."""
    from rhymed.core.run import checkpoint
    from rhymed.core.run.layout import layout_of

    if not wanted:
        return "base", config.model.path, None
    folder = layout_of(config).checkpoints
    if wanted == "latest" or wanted.isdecimal():
        found = checkpoint.newest(folder) if wanted == "latest" else checkpoint.at_step(folder, int(wanted))
        if found is None:
            there = ", ".join(str(one.step) for one in checkpoint.checkpoints_in(folder)) or "none"
            raise ConfigError(f"--checkpoint {wanted}: not in {folder}; steps there: {there}")
        return found.folder.name, *_model_of(config, found.folder)
    if not Path(wanted).expanduser().is_dir():
        raise ConfigError(f"--checkpoint {wanted}: neither latest, nor a number of steps, nor a folder")
    resolved = Path(wanted).expanduser().resolve()
    return resolved.name.lstrip("._-") or "model", *_model_of(config, resolved)


def _model_of(config: Config, folder: Path) -> tuple[str, Lora | None]:
    """The folder itself, or the run's model with the adapter that the folder has."""
    from rhymed_workers.lora.saved import is_adapter, lora_of

    return (config.model.path, lora_of(folder)) if is_adapter(folder) else (str(folder), None)
